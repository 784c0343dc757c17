"""Files that are whole or not there, and what is stored in them."""
