//! Setting, clearing and listing the overrides of single partitions.
