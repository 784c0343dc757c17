"""Running on separate machines: certificates, files for each host, nodes, and a look at what is wrong."""
