//! Tokens for the JWT provider of `envoy/envoy.yaml`, and for a second one that tests add.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::Result;
use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;

/// The key of the demo. It is public: a deployment configures its own issuer.
pub const DEMO_KEY: &[u8] = b"quotagate-demo-key-do-not-deploy";
/// The issuer that the shipped configuration trusts.
pub const ISSUER: &str = "quotagate-demo";

const LIFETIME: Duration = Duration::from_secs(24 * 60 * 60);

/// Who signs tokens.
#[derive(Debug, Clone, Copy)]
pub struct SigningKey {
    /// The issuer that tokens name.
    pub name: &'static str,
    /// The key of HMAC with SHA-256.
    pub key: &'static [u8],
}

/// The issuer of the demo.
pub const DEMO: SigningKey = SigningKey { name: ISSUER, key: DEMO_KEY };
/// A second issuer, which [`edits::second_issuer`](crate::edits::second_issuer) adds.
pub const OTHER: SigningKey =
    SigningKey { name: "quotagate-other", key: b"the key of the other test issuer" };

impl SigningKey {
    /// The JSON Web Key Set that verifies its tokens.
    #[must_use]
    pub fn jwks(&self) -> String {
        let key = json!({"kty": "oct", "alg": "HS256", "k": URL_SAFE_NO_PAD.encode(self.key)});
        json!({ "keys": [key] }).to_string()
    }

    /// A token with these claims besides issuer and expiry.
    ///
    /// # Errors
    /// When the clock stands before 1970.
    pub fn token(&self, claims: &Value) -> Result<String> {
        let expiry = SystemTime::now().duration_since(UNIX_EPOCH)? + LIFETIME;
        let mut all = json!({ "iss": self.name, "exp": expiry.as_secs() });
        if let (Some(all), Some(claims)) = (all.as_object_mut(), claims.as_object()) {
            all.extend(claims.clone());
        }
        let header = json!({ "alg": "HS256", "typ": "JWT" });
        let [header, all] = [header, all].map(|part| URL_SAFE_NO_PAD.encode(part.to_string()));
        let signed = format!("{header}.{all}");
        let mut mac = Hmac::<Sha256>::new_from_slice(self.key)?;
        mac.update(signed.as_bytes());
        Ok(format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes())))
    }
}

/// A token that the shipped configuration accepts, for this subject.
///
/// # Errors
/// When the clock stands before 1970.
pub fn token(subject: &str) -> Result<String> {
    token_with(&json!({ "sub": subject }))
}

/// A token that the shipped configuration accepts, with these claims besides issuer and expiry.
///
/// # Errors
/// When the clock stands before 1970.
pub fn token_with(claims: &Value) -> Result<String> {
    DEMO.token(claims)
}

/// A token for this subject that was signed with another key.
///
/// # Errors
/// When the clock stands before 1970.
pub fn forged(subject: &str) -> Result<String> {
    let stranger = SigningKey { name: ISSUER, key: b"the key of another, unknown party" };
    stranger.token(&json!({ "sub": subject }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{paths, yaml};

    #[test]
    fn shipped_configuration_holds_the_demo_key() {
        let text = yaml::read(&paths::envoy_config()).unwrap().to_string();
        assert!(
            text.contains(&URL_SAFE_NO_PAD.encode(DEMO_KEY)),
            "the key in envoy.yaml is another one"
        );
        assert!(text.contains(ISSUER));
    }

    #[test]
    fn forged_token_differs_only_in_its_signature() {
        let (good, bad) = (token("alice").unwrap(), forged("alice").unwrap());
        assert_eq!(good.split('.').count(), 3);
        assert_ne!(good.rsplit('.').next(), bad.rsplit('.').next());
    }
}
