//! Compresses a stream of events, so that each one leaves at once.

use std::io::{self, Write};

use axum::body::{Body, Bytes};
use axum::http::HeaderMap;
use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING, HeaderValue, VARY};
use axum::response::Response;
use flate2::Compression;
use flate2::write::GzEncoder;
use futures_util::{StreamExt, stream};

/// Whether a client accepts gzip: it names it, and with no quality of 0.
pub fn is_accepted(headers: &HeaderMap) -> bool {
    let values = headers.get_all(ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    values.flat_map(|value| value.split(',')).any(|coding| {
        let (name, parameters) = coding.split_once(';').unwrap_or((coding, ""));
        let quality = parameters.trim().strip_prefix("q=").and_then(|text| text.parse().ok());
        name.trim().eq_ignore_ascii_case("gzip") && quality != Some(0.0)
    })
}

/// The response with a compressed body. What each frame of the body holds can be read as soon as
/// the frame has come.
pub fn compressed(response: Response) -> Response {
    let (mut parts, body) = response.into_parts();
    parts.headers.insert(CONTENT_ENCODING, HeaderValue::from_static("gzip"));
    parts.headers.insert(VARY, HeaderValue::from_static("accept-encoding"));
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    let frames = body.into_data_stream().map(Some).chain(stream::iter([None]));
    let frames = frames.map(move |frame| {
        match frame {
            Some(frame) => {
                encoder.write_all(&frame.map_err(io::Error::other)?)?;
                encoder.flush()?;
            }
            None => encoder.try_finish()?,
        }
        Ok::<_, io::Error>(Bytes::from(std::mem::take(encoder.get_mut())))
    });
    Response::from_parts(parts, Body::from_stream(frames))
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use axum::response::IntoResponse;
    use flate2::read::GzDecoder;
    use http_body_util::BodyExt;

    use super::*;

    #[test]
    fn gzip_is_used_only_where_the_client_names_it() {
        for (value, expected) in [
            ("gzip, deflate, br", true),
            ("br;q=1.0, GZIP;q=0.5", true),
            ("gzip;q=0", false),
            ("gzip; q=0.0, br", false),
            ("br", false),
            ("*", false),
            ("", false),
        ] {
            let headers = [(ACCEPT_ENCODING, HeaderValue::from_static(value))];
            assert_eq!(is_accepted(&HeaderMap::from_iter(headers)), expected, "{value:?}");
        }
        assert!(!is_accepted(&HeaderMap::new()));
    }

    #[tokio::test]
    async fn each_frame_can_be_read_before_the_next_one_comes() {
        let frames = ["event: one\n\n", "event: two\n\n"].map(Ok::<_, io::Error>);
        let mut response = compressed(Body::from_stream(stream::iter(frames)).into_response());
        assert_eq!(response.headers()[CONTENT_ENCODING], "gzip");
        let mut received = Vec::new();
        for expected in ["event: one\n\n", "event: one\n\nevent: two\n\n"] {
            let frame = response.body_mut().frame().await.unwrap().unwrap();
            received.extend(frame.into_data().unwrap());
            let mut text = vec![0; expected.len()];
            GzDecoder::new(&*received).read_exact(&mut text).unwrap();
            assert_eq!(text, expected.as_bytes());
        }
        received.extend(response.into_body().collect().await.unwrap().to_bytes());
        let mut whole = String::new();
        GzDecoder::new(&*received).read_to_string(&mut whole).unwrap();
        assert_eq!(whole, "event: one\n\nevent: two\n\n", "it has an end");
    }
}
