//! One measurement: a load, the responses, and the processor time of every part.

pub mod counts;
pub mod cpu;
pub mod load;
pub mod machine;
pub mod ping;
pub mod sample;
