"""What hardware is and what it can do at most: the catalogue of devices and links, what is here, and what its sensors say."""
