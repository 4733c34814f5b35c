//! Reads several logs at once, compressed or not, in chunks of whole lines.

mod chunks;
mod open;
mod schedule;

pub(crate) use self::chunks::Chunk;
pub(crate) use self::open::Progress;
pub(crate) use self::schedule::{ChunkPosition, Faults, Schedule};
