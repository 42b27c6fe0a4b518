"""How services of one host reach each other: Unix sockets, and memory that rows travel through."""
