//! Sheave floor 4: SQE/CQE rings, operations, task work, io-wq
