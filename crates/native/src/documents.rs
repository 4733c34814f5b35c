//! Published documents: checked once for all shards of a configuration, and kept for the next
//! configuration of the same filter.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quotagate_quota::config::{Config, Inheritance, PublishedDocument};

/// Most filters and domains whose document is kept. Beyond that, the one that was taken up first is
/// forgotten.
const KEPT: usize = 64;

/// A published document, and what this form of the filter makes of it.
type CheckedDocument = (Arc<PublishedDocument>, Result<Config, Vec<String>>);

/// The published documents that filters took up last, in the order in which they did.
static TAKEN_UP: Mutex<Vec<(Inheritance, Arc<PublishedDocument>)>> = Mutex::new(Vec::new());

/// What the shards of a configuration do with published documents.
pub struct LiveDocuments {
    /// Returns the configuration if this form of the filter can carry it out, else its faults.
    carried_out: fn(Config) -> Result<Config, Vec<String>>,
    /// Whose documents they are.
    owner: Inheritance,
    /// The last one that was checked. The first shard that gets a document checks it, and the
    /// others wait.
    checked: Mutex<Option<CheckedDocument>>,
}

impl LiveDocuments {
    /// Those of this filter and domain.
    pub fn new(
        owner: Inheritance,
        carried_out: fn(Config) -> Result<Config, Vec<String>>,
    ) -> Arc<Self> {
        Arc::new(Self { carried_out, owner, checked: Mutex::default() })
    }

    /// What this form of the filter makes of a document.
    ///
    /// # Errors
    /// All faults of the document.
    pub fn check(
        &self,
        document: &Arc<PublishedDocument>,
        embedded: &Config,
    ) -> Result<Config, Vec<String>> {
        let mut checked = lock(&self.checked);
        // The whole text, because stores may send two texts under one number and digest. A copy of
        // a configuration shares the large parts.
        if let Some((_, config)) = checked.as_ref().filter(|(known, _)| known == document) {
            return config.clone();
        }
        let config = document.config(embedded).map_err(Vec::from).and_then(self.carried_out);
        *checked = Some((Arc::clone(document), config.clone()));
        config
    }

    /// The document that this filter took up last in this process.
    pub fn inherited(&self) -> Option<Arc<PublishedDocument>> {
        let taken_up = lock(&TAKEN_UP);
        let (_, document) = taken_up.iter().find(|(owner, _)| *owner == self.owner)?;
        Some(Arc::clone(document))
    }

    /// Keeps a document that was taken up, for a later configuration of the same filter.
    pub fn keep(&self, document: &Arc<PublishedDocument>) {
        keep(&mut lock(&TAKEN_UP), &self.owner, document);
    }
}

fn keep(
    taken_up: &mut Vec<(Inheritance, Arc<PublishedDocument>)>,
    owner: &Inheritance,
    document: &Arc<PublishedDocument>,
) {
    taken_up.retain(|(other, _)| other != owner);
    if document.reply().is_empty() {
        // It was withdrawn, so the embedded one decides.
        return;
    }
    if taken_up.len() >= KEPT {
        taken_up.remove(0);
    }
    taken_up.push((owner.clone(), Arc::clone(document)));
}

/// A check may panic, and then has written nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    const EMBEDDED: &str =
        r#"{"domain": "shop", "store": {"cluster": "c"}, "live": true, "policies": []}"#;

    fn published(number: u64, digest: &str) -> Arc<PublishedDocument> {
        let document = r#"{"domain": "shop", "policies": []}"#;
        let reply =
            format!(r#"{{"number": {number}, "digest": "{digest}", "document": {document}}}"#);
        Arc::new(PublishedDocument::read(reply.as_bytes()).unwrap().unwrap())
    }

    #[test]
    fn document_is_checked_once_for_all_shards_and_each_text_by_itself() {
        static CHECKS: AtomicUsize = AtomicUsize::new(0);
        let carried_out = |config| {
            CHECKS.fetch_add(1, Ordering::Relaxed);
            Ok(config)
        };
        let embedded = Config::parse(EMBEDDED.as_bytes()).unwrap();
        let value = serde_json::from_str(r#"{"domain": "shop", "policies": []}"#).unwrap();
        let digest = PublishedDocument::check(&value).unwrap().1.digest;
        let live = LiveDocuments::new(Inheritance::new("quotagate", "shop"), carried_out);
        // Each shard fetched a copy of its own.
        for _shard in 0..4 {
            assert_eq!(live.check(&published(1, &digest), &embedded).unwrap().number(), 1);
        }
        assert_eq!(CHECKS.load(Ordering::Relaxed), 1);
        assert_eq!(live.check(&published(2, &digest), &embedded).unwrap().number(), 2);
        assert_eq!(CHECKS.load(Ordering::Relaxed), 2);
        assert!(live.check(&published(2, "0123456789ab"), &embedded).is_err());
    }

    #[test]
    fn documents_of_few_filters_are_kept_each_with_its_owner() {
        let (mut taken_up, document) = (Vec::new(), published(1, "0123456789ab"));
        let owner = |filter: usize| Inheritance::new(filter.to_string(), "shop");
        for filter in 0..KEPT {
            keep(&mut taken_up, &owner(filter), &document);
        }
        let newer = published(2, "0123456789ab");
        keep(&mut taken_up, &owner(0), &newer);
        assert_eq!(taken_up.len(), KEPT);
        keep(&mut taken_up, &owner(KEPT), &document);
        assert_eq!(taken_up.len(), KEPT);
        let kept = |filter| taken_up.iter().find(|(of, _)| *of == owner(filter));
        assert!(kept(1).is_none(), "the one that was taken up first");
        assert_eq!(kept(0).unwrap().1, newer);
    }
}
