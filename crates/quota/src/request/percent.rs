//! Percent-decoding, once. Everything but `%` and two hexadecimal digits stays as it is.

/// `text` decoded.
pub(crate) fn decode(text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    let mut rest = text;
    loop {
        rest = match rest {
            [b'%', high, low, after @ ..] => match (digit(*high), digit(*low)) {
                (Some(high), Some(low)) => {
                    out.push(high << 4 | low);
                    after
                }
                _ => {
                    out.push(b'%');
                    rest.split_first().map_or(&[], |(_, after)| after)
                }
            },
            [byte, after @ ..] => {
                out.push(*byte);
                after
            }
            [] => return out,
        }
    }
}

/// The value of a hexadecimal digit.
fn digit(byte: u8) -> Option<u8> {
    char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_escapes_are_decoded_and_only_once() {
        for (text, decoded) in [
            ("", &b""[..]),
            ("a%20b", b"a b"),
            ("%c3%A4%FF%00", b"\xc3\xa4\xff\0"),
            ("%2541", b"%41"),
            ("%", b"%"),
            ("%4", b"%4"),
            ("%zz%4g%g4", b"%zz%4g%g4"),
            ("%%41", b"%A"),
            ("a+b", b"a+b"),
        ] {
            assert_eq!(decode(text.as_bytes()), decoded, "{text}");
        }
    }
}
