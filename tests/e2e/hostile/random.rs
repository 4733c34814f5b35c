//! Random requests, the same ones in every run.

use quotagate_support::http::Request;

use super::VALUES;
use super::target::SECRET;

/// A small pseudorandom number generator: xorshift.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    pub(crate) fn one_of<'a, T: ?Sized>(&mut self, choices: &[&'a T]) -> &'a T {
        choices[self.below(choices.len())]
    }

    /// Mostly bytes with a meaning in some format, some arbitrary ones, and rarely ones that Envoy
    /// rejects.
    fn bytes(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..self.below(8) {
            match self.below(20) {
                0 => bytes.push(self.below(256) as u8),
                1..=6 => bytes.push(128 + self.below(128) as u8),
                7..=12 => bytes.push(32 + self.below(95) as u8),
                _ => bytes.extend_from_slice(self.one_of(&VALUES).as_bytes()),
            }
        }
        bytes
    }

    /// Random text for a path: no bytes that end the path, and none that the sample upstream
    /// rejects.
    fn text(&mut self) -> String {
        let plain = |byte: &u8| byte.is_ascii_graphic() && *byte != b'#';
        self.bytes().iter().filter(|byte| plain(byte)).map(|byte| char::from(*byte)).collect()
    }

    /// The next request.
    pub(super) fn request(&mut self) -> Request {
        let method = self.one_of(&[
            "GET",
            "GET",
            "GET",
            "GET",
            "POST",
            "PATCH",
            "OPTIONS",
            "get",
            "X-Y",
            "\u{1F4A3}",
        ]);
        let (path, query) = (self.text(), self.text());
        let mut request = Request::new(method, &format!("/{path}?ticket={SECRET}&page={query}"));
        let names = [
            "x-api-key",
            "x-tenant",
            "x-cost",
            "cookie",
            "cookie",
            "x-forwarded-for",
            "x-probe",
            "x-tenant",
        ];
        for _ in 0..self.below(8) {
            let (name, mut value) = (self.one_of(&names), self.bytes());
            match name {
                "x-api-key" => value.splice(0..0, *b"s3cret").for_each(drop),
                "cookie" => value.splice(0..0, *b"session=s3cret; crumb=").for_each(drop),
                _ => {}
            }
            request = request.raw_header(name.as_bytes(), &value);
        }
        request
    }
}
