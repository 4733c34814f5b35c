//! What a policy document says of the store, and of its windows: checked by the store's library.

use std::path::Path;

use quotagate_calendar::check_zone;
use quotagate_protocol::Window;
use quotagate_quota::config::{Config, Fault, Policy, RedisStore};
use quotagate_store::secret::PasswordFile;
use quotagate_store::url::{StoreUrl, UrlError};

/// Checks what a policy document says of its store, without reading a file, which may be on another
/// machine.
///
/// # Errors
/// The field that is at fault, and why. The password is never shown.
pub fn store_url(store: &RedisStore) -> Result<StoreUrl, Fault> {
    store_url_with(store, |path| Ok(PasswordFile::new(path)))
}

/// Like [`store_url`], and reads the files that the document names.
///
/// # Errors
/// The field that is at fault, and why.
pub fn open_store_url(store: &RedisStore) -> Result<StoreUrl, Fault> {
    let open = |path: &Path| {
        PasswordFile::open(path).map_err(|error| fault("password_file", error.to_string()))
    };
    let url = store_url_with(store, open)?;
    url.read_files().map_err(|error| fault("redis", error.to_string()))?;
    Ok(url)
}

/// The time zones of a policy document that are not known.
pub fn unknown_zones(config: &Config) -> Vec<Fault> {
    let fault = |(index, policy): (usize, &Policy)| {
        let Window::Calendar(calendar) = &policy.window else { return None };
        let message = check_zone(&calendar.time_zone).err()?.to_string();
        Some(Fault { path: format!("policies[{index}].window.time_zone"), message })
    };
    config.policies.iter().enumerate().filter_map(fault).collect()
}

fn store_url_with(
    store: &RedisStore,
    open: impl Fn(&Path) -> Result<PasswordFile, Fault>,
) -> Result<StoreUrl, Fault> {
    let at = |field| move |error: UrlError| fault(field, error.to_string());
    let url: StoreUrl = store.url.parse().map_err(at("redis"))?;
    let Some(file) = &store.password_file else { return Ok(url) };
    let field = if url.holds_password() { "redis" } else { "password_file" };
    url.with_password_file(open(Path::new(&**file))?).map_err(at(field))
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
            let fault = store_url(&store(url, file)).unwrap_err().to_string();
            assert!(fault.starts_with(expected) && !fault.contains("s3cret"), "{fault}");
        }
        for (url, file) in [("memory:", None), ("redis-cluster://u@a,b", Some("/password"))] {
            store_url(&store(url, file)).unwrap();
        }
    }

    #[test]
    fn files_of_a_document_are_read_when_it_is_opened() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("password");
        let with_file = store("redis://u@a", file.to_str());
        store_url(&with_file).unwrap();
        let fault = open_store_url(&with_file).unwrap_err();
        assert_eq!(fault.path, "store.password_file");
        std::fs::write(&file, "s3cret\n").unwrap();
        open_store_url(&with_file).unwrap();
        let missing = format!(
            "redis-sentinel://a/m?sentinel_password_file={}/none",
            directory.path().display()
        );
        assert_eq!(open_store_url(&store(&missing, None)).unwrap_err().path, "store.redis");
    }
}
