//! Makes choices from bytes, so that any source of bytes (a property test, a fuzzer) makes whole
//! cases. When no bytes are left, they read as zeros, and zero is the simplest choice.

/// Bytes with a meaning in some format: keys, headers, paths, cookies, queries or host properties.
const TELLING: &[u8] = b"a~%=,-*{}:/.;&+? \t\"\\\0\n\xff\xc3A7@#|2E";

pub struct Choices<'b>(&'b [u8]);

impl<'b> Choices<'b> {
    pub fn new(bytes: &'b [u8]) -> Self {
        Self(bytes)
    }

    pub fn byte(&mut self) -> u8 {
        let (first, rest) = self.0.split_first().unwrap_or((&0, &[]));
        self.0 = rest;
        *first
    }

    /// 0 to `n - 1`.
    pub fn below(&mut self, n: usize) -> usize {
        usize::from(self.byte()) % n
    }

    pub fn yes(&mut self) -> bool {
        self.below(2) == 1
    }

    pub fn of<'t, T>(&mut self, all: &'t [T]) -> &'t T {
        &all[self.below(all.len())]
    }

    /// The bytes of one of these texts.
    pub fn text(&mut self, all: &[&'static str]) -> &'static [u8] {
        self.of(all).as_bytes()
    }

    /// Mostly short, sometimes about as long as the longest value that is not digested, or longer.
    pub fn bytes(&mut self) -> Vec<u8> {
        let len = *self.of(&[1, 0, 2, 3, 8, 127, 128, 129, 200]);
        let mut bytes: Vec<u8> = (0..len.min(8)).map(|_| self.telling()).collect();
        bytes.resize(len, *self.of(b"x~"));
        bytes
    }

    fn telling(&mut self) -> u8 {
        let byte = self.byte();
        *TELLING.get(usize::from(byte)).unwrap_or(&byte)
    }
}
