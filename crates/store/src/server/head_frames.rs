//! The frames of an HTTP/2 connection. Each head must arrive in one of them.
//!
//! The fields of a head that goes on in further frames are kept decoded, at up to a hundred times
//! their size on the wire, and count for no request. A head within the bound of the server needs
//! no second frame.

/// The beginning of each HTTP/2 connection.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// Bytes of a frame's length, type and flags.
const BEGINNING: u32 = 5;
/// Bytes of a frame's stream number.
const STREAM: usize = 4;
/// The type of a frame that begins a head.
const HEADERS: u64 = 1;
/// The flag of a frame that ends a head.
const END_HEADERS: u64 = 4;

/// State of the frames of a connection.
pub enum HeadFrames {
    /// The preface, but for these bytes.
    Preface(&'static [u8]),
    /// HTTP/1.1.
    Http1,
    /// Frames of HTTP/2.
    Http2 {
        /// Bytes until the next frame begins.
        skip: usize,
        /// The beginning of the next frame, and how many bytes of it have arrived.
        beginning: (u64, u32),
    },
}

impl Default for HeadFrames {
    fn default() -> Self {
        Self::Preface(PREFACE)
    }
}

impl HeadFrames {
    /// Follows the next bytes of the connection. Returns whether each head ends in the frame in
    /// which it begins.
    #[must_use]
    pub fn read(&mut self, mut bytes: &[u8]) -> bool {
        loop {
            if let Self::Http2 { skip, .. } = self {
                let skipped = bytes.len().min(*skip);
                *skip -= skipped;
                bytes = bytes.get(skipped..).unwrap_or_default();
            }
            let Some((&byte, further)) = bytes.split_first() else { return true };
            bytes = further;
            match self {
                Self::Http1 => return true,
                Self::Preface([expected]) if byte == *expected => {
                    *self = Self::Http2 { skip: 0, beginning: (0, 0) };
                }
                Self::Preface([expected, rest @ ..]) if byte == *expected => {
                    *self = Self::Preface(rest);
                }
                Self::Preface(_) => *self = Self::Http1,
                Self::Http2 { skip, beginning: (beginning, count) } => {
                    (*beginning, *count) = (*beginning << 8 | u64::from(byte), *count + 1);
                    if *count == BEGINNING {
                        let (length, kind) = (*beginning >> 16, *beginning >> 8 & 0xff);
                        if kind == HEADERS && *beginning & END_HEADERS == 0 {
                            return false;
                        }
                        *skip = STREAM + usize::try_from(length).unwrap_or(usize::MAX - STREAM);
                        (*beginning, *count) = (0, 0);
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        [&length[1..], &[kind, flags, 0, 0, 0, 1], payload].concat()
    }

    #[test]
    fn heads_in_several_frames_are_found() {
        let settings = frame(4, 0, &[0; 12]);
        let whole = frame(1, 5, &[1; 300]);
        let begun = frame(1, 1, &[0x93]);
        let data = frame(0, 1, &begun);
        for (bytes, expected) in [
            ([PREFACE, &settings, &whole, &data, &whole].concat(), true),
            ([PREFACE, &settings, &begun].concat(), false),
            ([PREFACE, &settings, &whole, &data, &begun].concat(), false),
            ([b"PRI * HTTP/1.1\r\n\r\n", &begun[..]].concat(), true),
            ([b"GET / HTTP/1.1\r\n\r\n", &begun[..]].concat(), true),
        ] {
            for size in [1, 2, 7, bytes.len()] {
                let mut frames = HeadFrames::default();
                let ends = bytes.chunks(size).all(|part| frames.read(part));
                assert_eq!(ends, expected, "{bytes:?} in parts of {size}");
            }
        }
    }
}
