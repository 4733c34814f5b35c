//! The certificates that the store's image trusts, for `rediss://`.

use pem::{EncodeConfig, LineEnding, Pem, encode_many_config};
use webpki_root_certs::TLS_SERVER_ROOT_CERTS;

/// Where the store looks for them, as every program on Debian does. `SSL_CERT_FILE` names another
/// file.
pub const PATH: &str = "etc/ssl/certs/ca-certificates.crt";

/// Mozilla's roots. They come with a crate, not from the machine that builds: the same input gives
/// the same image.
pub fn pem() -> String {
    let roots: Vec<Pem> =
        TLS_SERVER_ROOT_CERTS.iter().map(|root| Pem::new("CERTIFICATE", root.as_ref())).collect();
    encode_many_config(&roots, EncodeConfig::new().set_line_ending(LineEnding::LF))
}
