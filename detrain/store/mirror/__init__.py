"""Mirrors: copies of checkpoint homes on other machines or in object stores, made while the programs train."""
