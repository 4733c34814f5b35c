//! The store that a policy document names: `store.redis` and `store.password_file`.

use std::path::Path;

use quotagate_quota::config::{Fault, RedisStore};

use super::{StoreUrl, UrlError};
use crate::secret::PasswordFile;

impl StoreUrl {
    /// Checks what a policy document says, without reading a file, which may be on another machine.
    ///
    /// # Errors
    /// The field that is at fault, and why. The password is never shown.
    pub fn of_document(store: &RedisStore) -> Result<Self, Fault> {
        Self::with(store, |path| Ok(PasswordFile::new(path)))
    }

    /// Like [`of_document`](Self::of_document), and reads the files that the document names.
    ///
    /// # Errors
    /// The field that is at fault, and why.
    pub fn open_document(store: &RedisStore) -> Result<Self, Fault> {
        let open = |path: &Path| {
            PasswordFile::open(path).map_err(|error| fault("password_file", error.to_string()))
        };
        let url = Self::with(store, open)?;
        url.read_files().map_err(|error| fault("redis", error.to_string()))?;
        Ok(url)
    }

    fn with(
        store: &RedisStore,
        open: impl Fn(&Path) -> Result<PasswordFile, Fault>,
    ) -> Result<Self, Fault> {
        let at = |field| move |error: UrlError| fault(field, error.to_string());
        let url: Self = store.url.parse().map_err(at("redis"))?;
        let Some(file) = &store.password_file else { return Ok(url) };
        let field = if url.holds_password() { "redis" } else { "password_file" };
        url.with_password_file(open(Path::new(&**file))?).map_err(at(field))
    }
}

fn fault(field: &str, message: String) -> Fault {
    Fault { path: format!("store.{field}"), message }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn store(url: &str, password_file: Option<&str>) -> RedisStore {
        let password_file = password_file.map(Box::from);
        RedisStore { url: url.into(), password_file, prefix: "qg".into() }
    }

    #[test]
    fn faults_of_a_document_name_the_field_and_never_the_password() {
        for (url, file, expected) in [
            ("redis://u:s3cret@a,b", None, "store.redis: the store URL of redis:// takes one host"),
            (
                "redis://u:s3cret@a",
                Some("/password"),
                "store.redis: the store URL holds a password already",
            ),
            (
                "memory:",
                Some("/password"),
                "store.password_file: the store URL memory: takes no password",
            ),
        ] {
            let fault = StoreUrl::of_document(&store(url, file)).unwrap_err().to_string();
            assert!(fault.starts_with(expected) && !fault.contains("s3cret"), "{fault}");
        }
        for (url, file) in [("memory:", None), ("redis-cluster://u@a,b", Some("/password"))] {
            StoreUrl::of_document(&store(url, file)).unwrap();
        }
    }

    #[test]
    fn files_of_a_document_are_read_when_it_is_opened() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("password");
        let with_file = store("redis://u@a", file.to_str());
        StoreUrl::of_document(&with_file).unwrap();
        let fault = StoreUrl::open_document(&with_file).unwrap_err();
        assert_eq!(fault.path, "store.password_file");
        std::fs::write(&file, "s3cret\n").unwrap();
        StoreUrl::open_document(&with_file).unwrap();
        let missing = format!(
            "redis-sentinel://a/m?sentinel_password_file={}/none",
            directory.path().display()
        );
        assert_eq!(
            StoreUrl::open_document(&store(&missing, None)).unwrap_err().path,
            "store.redis"
        );
    }
}
