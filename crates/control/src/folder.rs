//! The folder of documents that a store publishes (`--documents`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use std::{fs, io};

use prometheus_client::metrics::gauge::Gauge;
use quotagate_operate::{DocumentContent, Documents, Fault, FolderDocuments};
use serde_json::Value;
use tokio::task::spawn_blocking;
use tokio::time::sleep;

/// How often the files are read. They are compared by content, since a mounted volume may change
/// behind its links.
const EVERY: Duration = Duration::from_secs(1);
/// Largest file. Comments and a configuration around a document take room, too.
const MAX_FILE: u64 = 8 << 20;
/// The ends of the names of files that are read.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// The documents in a file of this name with this content.
///
/// # Errors
/// What is wrong with it, a line for each fault.
pub type ReadDocuments = fn(&str, Vec<u8>) -> Result<Vec<FileDocument>, Vec<String>>;

/// A document of a file.
#[derive(Clone, Debug)]
pub struct FileDocument {
    /// Its domain.
    pub domain: String,
    /// As it is published: an object, or the text of a rule file.
    pub document: Value,
}

/// A folder with documents.
#[derive(Clone, Debug)]
pub struct DocumentFolder {
    /// Its path.
    pub path: PathBuf,
    /// Reads a file.
    pub read: ReadDocuments,
}

/// What is known of a file: its content, and what that says.
struct FileReading {
    text: Vec<u8>,
    /// `None` until a second look has found the same content, as it may be half written.
    documents: Option<Result<Vec<FileDocument>, String>>,
    /// One for each document, once it was checked: what is published of it, or why it cannot be.
    contents: Vec<Result<DocumentContent, String>>,
}

impl DocumentFolder {
    /// Publishes the documents of the files whenever they change. Never returns.
    pub(crate) async fn keep_published(&self, documents: Arc<Documents>, faulty: &Gauge) {
        let mut published = FolderDocuments::new(documents);
        let mut files: BTreeMap<String, FileReading> = BTreeMap::new();
        let mut logged: BTreeMap<String, String> = BTreeMap::new();
        loop {
            let (path, read, before) = (self.path.clone(), self.read, std::mem::take(&mut files));
            // A disk that hangs delays nothing else, and a large document takes time.
            let look = spawn_blocking(move || look(&path, read, before)).await;
            let mut complaints = BTreeMap::new();
            match look {
                Ok((seen, Ok(()))) => files = seen,
                Ok((seen, Err(error))) => {
                    files = seen;
                    complaints.insert(String::new(), format!("cannot be read: {error}"));
                }
                Err(error) => tracing::error!("reading the folder of documents: {error}"),
            }
            check(&published, &mut files).await;
            offer(&mut published, &files, &mut complaints).await;
            for (file, complaint) in &complaints {
                if logged.get(file) != Some(complaint) {
                    tracing::error!("{}: {complaint}", self.path.join(file).display());
                }
            }
            let gone = |file: &&String| !complaints.contains_key(*file);
            for file in logged.keys().filter(gone) {
                tracing::info!("{}: nothing is wrong any more", self.path.join(file).display());
            }
            faulty.set(i64::try_from(complaints.len()).unwrap_or(i64::MAX));
            logged = complaints;
            sleep(EVERY).await;
        }
    }
}

/// Checks the documents that have not been checked yet.
async fn check(published: &FolderDocuments, files: &mut BTreeMap<String, FileReading>) {
    for FileReading { documents, contents, .. } in files.values_mut() {
        let Some(Ok(documents)) = documents else { continue };
        for FileDocument { document, .. } in documents.iter().skip(contents.len()) {
            contents.push(published.check(document).await.map_err(|fault| said(&fault)));
        }
    }
}

/// Has each document published, unless it was, and adds what is wrong with a file.
async fn offer(
    published: &mut FolderDocuments,
    files: &BTreeMap<String, FileReading>,
    complaints: &mut BTreeMap<String, String>,
) {
    let mut of_domain: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for (file, reading) in files {
        match &reading.documents {
            Some(Ok(documents)) => {
                for of in documents {
                    of_domain.entry(&of.domain).or_default().push(file);
                }
            }
            Some(Err(faults)) => drop(complaints.insert(file.clone(), faults.clone())),
            None => {}
        }
    }
    for (file, reading) in files {
        let Some(Ok(documents)) = &reading.documents else { continue };
        for (FileDocument { domain, .. }, content) in documents.iter().zip(&reading.contents) {
            let same = of_domain.get(&**domain).map_or(&[][..], Vec::as_slice);
            let wrong = match same {
                [_] => match content {
                    Ok(content) => {
                        published.offer(content, file).await.err().map(|fault| said(&fault))
                    }
                    Err(faults) => Some(faults.clone()),
                },
                several => Some(format!(
                    "the domain {domain} has several documents, in {}: keep one, so that it can be \
                     published",
                    several.join(" and ")
                )),
            };
            if let Some(wrong) = wrong {
                let text = complaints.entry(file.clone()).or_default();
                *text += if text.is_empty() { "" } else { "; " };
                *text += &wrong;
            }
        }
    }
}

/// Why a document is not published now. What is in force stays.
fn said(fault: &Fault) -> String {
    format!("is not published, and what is in force stays: {fault}")
}

/// The files now. What was read of a file whose content is the same is kept.
fn look(
    folder: &Path,
    read: ReadDocuments,
    mut before: BTreeMap<String, FileReading>,
) -> (BTreeMap<String, FileReading>, io::Result<()>) {
    let texts = match texts(folder) {
        Ok(texts) => texts,
        // A volume that is away for a moment takes no document back.
        Err(error) => return (before, Err(error)),
    };
    let readings = texts.into_iter().map(|(name, text)| {
        let known = before.remove(&name);
        let reading = match (text, known) {
            (Err(error), _) => {
                let documents = Some(Err(format!("cannot be read: {error}")));
                FileReading { text: Vec::new(), documents, contents: Vec::new() }
            }
            (Ok(text), Some(known)) if known.text == text && known.documents.is_some() => known,
            (Ok(text), Some(known)) if known.text == text => {
                let documents = read(&name, text.clone()).map_err(|lines| lines.join("\n"));
                FileReading { text, documents: Some(documents), contents: Vec::new() }
            }
            (Ok(text), _) => FileReading { text, documents: None, contents: Vec::new() },
        };
        (name, reading)
    });
    (readings.collect(), Ok(()))
}

/// The contents of the files by name. Those of a mounted ConfigMap are links into a folder whose
/// name begins with dots.
fn texts(folder: &Path) -> io::Result<BTreeMap<String, io::Result<Vec<u8>>>> {
    let mut texts = BTreeMap::new();
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let (name, path) = (entry.file_name().to_string_lossy().into_owned(), entry.path());
        let extension = path.extension().and_then(|extension| extension.to_str());
        if name.starts_with('.') || !extension.is_some_and(|of| EXTENSIONS.contains(&of)) {
            continue;
        }
        let text = fs::metadata(&path).and_then(|metadata| match metadata.len() {
            // Reading a pipe would never end.
            _ if !metadata.is_file() => Err(io::Error::other("it is no regular file")),
            length if length > MAX_FILE => {
                Err(io::Error::other(format!("it has {length} bytes, and at most {MAX_FILE}")))
            }
            _ => fs::read(&path),
        });
        texts.insert(name, text);
    }
    Ok(texts)
}
