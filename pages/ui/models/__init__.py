"""What the page Models is made of: the memory calculator, and what runs measured."""
