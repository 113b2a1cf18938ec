//! Sheave floor 3: kiocb, the File trait, mappings, the one direct-I/O engine
