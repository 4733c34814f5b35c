//! Published documents: checked once for all shards of a configuration, and kept for the next
//! configuration of the same filter.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use quotagate_quota::config::{Config, Inheritance, PublishedDocument};

/// Most filters and domains whose document is kept. Beyond that, the one whose last take-up is
/// longest ago is forgotten.
const KEPT: usize = 64;

/// A published document, and what this form of the filter makes of it.
pub type CheckedDocument = (Arc<PublishedDocument>, Result<Config, Vec<String>>);

/// The published documents that filters took up last, in the order in which they did.
static TAKEN_UP: Mutex<Vec<(Inheritance, Arc<PublishedDocument>)>> = Mutex::new(Vec::new());

/// What the shards of a configuration do with published documents.
pub struct LiveDocuments {
    /// Returns the configuration if this form of the filter can carry it out, else its faults.
    carried_out: fn(Config) -> Result<Config, Vec<String>>,
    /// Whose documents they are.
    owner: Inheritance,
    embedded: Arc<Config>,
    /// The last one that was checked. The first shard that gets a document checks it, and the
    /// others wait.
    checked: Mutex<Option<CheckedDocument>>,
}

impl LiveDocuments {
    /// Those of this filter and the domain of its embedded configuration.
    pub fn new(
        owner: Inheritance,
        embedded: Arc<Config>,
        carried_out: fn(Config) -> Result<Config, Vec<String>>,
    ) -> Arc<Self> {
        Arc::new(Self { carried_out, owner, embedded, checked: Mutex::default() })
    }

    /// What this form of the filter makes of a document.
    ///
    /// # Errors
    /// All faults of the document.
    pub fn check(&self, document: &Arc<PublishedDocument>) -> Result<Config, Vec<String>> {
        let mut checked = lock(&self.checked);
        // The whole text, because stores may send two texts under one number and digest. A copy of
        // a configuration shares the large parts.
        if let Some((_, config)) = checked.as_ref().filter(|(known, _)| known == document) {
            return config.clone();
        }
        let config = document.config(&self.embedded).map_err(Vec::from).and_then(self.carried_out);
        *checked = Some((Arc::clone(document), config.clone()));
        config
    }

    /// The document that this filter took up last in this process, checked.
    pub fn inherited(&self) -> Option<CheckedDocument> {
        let document = {
            let taken_up = lock(&TAKEN_UP);
            let (_, document) = taken_up.iter().find(|(owner, _)| *owner == self.owner)?;
            Arc::clone(document)
        };
        let config = self.check(&document);
        Some((document, config))
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

/// The value behind a mutex. A check may panic while one is locked, and has written nothing then.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::Barrier;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::thread;

    use super::*;

    const EMBEDDED: &str =
        r#"{"domain": "shop", "store": {"cluster": "c"}, "live": true, "policies": []}"#;
    const DOCUMENT: &str = r#"{"domain": "shop", "policies": []}"#;

    fn published(number: u64, digest: &str, document: &str) -> Arc<PublishedDocument> {
        let reply =
            format!(r#"{{"number": {number}, "digest": "{digest}", "document": {document}}}"#);
        Arc::new(PublishedDocument::read(reply.as_bytes()).unwrap().unwrap())
    }

    fn live(
        filter: &str,
        carried_out: fn(Config) -> Result<Config, Vec<String>>,
    ) -> Arc<LiveDocuments> {
        let embedded = Arc::new(Config::parse(EMBEDDED.as_bytes()).unwrap());
        LiveDocuments::new(Inheritance::new(filter, "shop"), embedded, carried_out)
    }

    fn digest() -> Box<str> {
        PublishedDocument::check(&serde_json::from_str(DOCUMENT).unwrap()).unwrap().1.digest
    }

    #[test]
    fn shards_that_ask_at_once_share_one_check() {
        static CHECKS: AtomicUsize = AtomicUsize::new(0);
        let live = live("shared", |config| {
            CHECKS.fetch_add(1, Ordering::Relaxed);
            Ok(config)
        });
        let (digest, all) = (digest(), Barrier::new(4));
        thread::scope(|scope| {
            for _shard in 0..4 {
                scope.spawn(|| {
                    // Each shard fetched a copy of its own.
                    let document = published(1, &digest, DOCUMENT);
                    all.wait();
                    assert_eq!(live.check(&document).unwrap().number(), 1);
                });
            }
        });
        assert_eq!(CHECKS.load(Ordering::Relaxed), 1);
        assert_eq!(live.check(&published(2, &digest, DOCUMENT)).unwrap().number(), 2);
        assert_eq!(CHECKS.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn text_of_a_store_that_lies_decides_nothing_about_the_text_of_another_one() {
        let (digest, live) = (digest(), live("lies", Ok));
        let good = published(1, &digest, DOCUMENT);
        let wrong = published(1, &digest, r#"{"domain": "shop", "policies": [7]}"#);
        assert!(live.check(&wrong).is_err());
        assert!(live.check(&good).is_ok());
        assert!(live.check(&wrong).is_err());
    }

    #[test]
    fn later_configuration_inherits_until_the_document_is_withdrawn() {
        let (digest, first) = (digest(), live("inherits", Ok));
        let document = published(7, &digest, DOCUMENT);
        first.keep(&document);
        let (inherited, config) = live("inherits", Ok).inherited().unwrap();
        assert_eq!((inherited, config.unwrap().number()), (document, 7));
        assert!(live("another", Ok).inherited().is_none());
        first.keep(&Arc::new(PublishedDocument::none(8)));
        assert!(live("inherits", Ok).inherited().is_none());
    }

    #[test]
    fn documents_of_few_filters_are_kept_each_with_its_owner() {
        let (mut taken_up, document) = (Vec::new(), published(1, "0123456789ab", DOCUMENT));
        let owner = |filter: usize| Inheritance::new(filter.to_string(), "shop");
        for filter in 0..KEPT {
            keep(&mut taken_up, &owner(filter), &document);
        }
        let newer = published(2, "0123456789ab", DOCUMENT);
        keep(&mut taken_up, &owner(0), &newer);
        assert_eq!(taken_up.len(), KEPT);
        keep(&mut taken_up, &owner(KEPT), &document);
        assert_eq!(taken_up.len(), KEPT);
        let kept = |filter| taken_up.iter().find(|(of, _)| *of == owner(filter));
        assert!(kept(1).is_none(), "its take-up is longest ago");
        assert_eq!(kept(0).unwrap().1, newer);
    }
}
