//! Logs of a task. The rotated files of one stream are read as one text from an offset, and
//! followed as long as the task lives. A single file can be followed in the same way.
//!
//! With `plain=true` the answer is the bytes. Otherwise it is Nomad's frames: JSON objects with the
//! bytes in base64, the file's name and the offset behind them. An empty object shows that the
//! connection is alive. If a followed file is deleted or truncated, a frame with that event says
//! so.

use base64::prelude::{BASE64_STANDARD, Engine as _};
use std::{fs::File, io, os::unix::fs::FileExt, path::PathBuf, sync::Arc, time::Duration};

use agent::{
    executor::log_indexes,
    machine::beneath::{Folder, is_spoiled},
};
use axum::{
    body::Body,
    extract::{Path as UrlPath, State},
    response::{IntoResponse, Response},
};
use bytes::Bytes;
use fsm::AllocationId;
use proto::v1::TaskPhase;
use tokio::{sync::mpsc, time::sleep};
use tokio_stream::wrappers::ReceiverStream;

use super::{Files, HttpError, files::Found, query::Parameters};
use crate::serve::CalledBy;

/// Bytes read at a time.
const CHUNK_BYTES: usize = 32 * 1024;
/// Log files that are shown: the newest, as many as a task may have.
const FILES_MAX: usize = 1_000;
/// Between two looks at a log that is followed.
const FOLLOW_PAUSE: Duration = Duration::from_millis(200);
/// Looks without news after which a frame says that the stream lives: each second, as in Nomad.
const QUIET_LOOKS_MAX: u32 = 5;

pub(super) async fn logs(
    State(files): State<Files>,
    CalledBy(caller): CalledBy,
    UrlPath(allocation): UrlPath<String>,
    query: Parameters,
) -> Result<Response, HttpError> {
    let directory = files.directory(&caller, &allocation)?;
    let kind = match query.text("type") {
        "" | "stdout" => "stdout",
        "stderr" => "stderr",
        other => {
            return Err(HttpError::BadRequest(format!(
                "must provide log type (stdout/stderr), not `{other}`"
            )));
        }
    };
    let id = id(&allocation)?;
    let task = query.text("task");
    if task.is_empty() {
        return Err(HttpError::BadRequest("must provide task name".to_owned()));
    }
    let view = files.node.view(id);
    let Some(state) = view.as_ref().and_then(|view| view.status.tasks.get(task)) else {
        return Err(HttpError::BadRequest(format!("unknown task name \"{task}\"")));
    };
    if state.started_at_ms == 0 {
        let text = format!("task \"{task}\" not started yet. No logs available");
        return Err(HttpError::NotFound(text));
    }
    let source = Source::Logs { directory: directory.logs(), name: format!("{task}.{kind}") };
    let follow = query.flag("follow", false)?;
    answer(files, source, follow, Watched { id, task: Some(task.to_owned()) }, &query).await
}

/// One file from an offset, followed (unless told not to) until the allocation's tasks have ended.
pub(super) async fn stream(
    State(files): State<Files>,
    CalledBy(caller): CalledBy,
    UrlPath(allocation): UrlPath<String>,
    query: Parameters,
) -> Result<Response, HttpError> {
    let file = Arc::new(super::files::file(&files, &caller, &allocation, &query).await?);
    let shown = query.text("path").trim_start_matches('/').to_owned();
    let follow = query.flag("follow", true)?;
    let watched = Watched { id: id(&allocation)?, task: None };
    answer(files, Source::File { file, shown }, follow, watched, &query).await
}

fn id(allocation: &str) -> Result<AllocationId, HttpError> {
    allocation.parse().map_err(|_| HttpError::NotFound(allocation.to_owned()))
}

async fn answer(
    files: Files,
    source: Source,
    follow: bool,
    watched: Watched,
    query: &Parameters,
) -> Result<Response, HttpError> {
    let from_end = match query.text("origin") {
        "" | "start" => false,
        "end" => true,
        other => {
            return Err(HttpError::BadRequest(format!(
                "origin must be start or end, not `{other}`"
            )));
        }
    };
    let offset = query.number("offset")?.unwrap_or(0);
    let plain = query.flag("plain", false)?;
    let of_source = source.clone();
    let position = files.work.run(move || Ok(of_source.position(from_end, offset)?)).await?;
    let (chunks_in, chunks) = mpsc::channel(4);
    let reader = Reader { files, watched, source, follow, plain, chunks: chunks_in };
    tokio::spawn(reader.copy(position));
    Ok(Body::from_stream(ReceiverStream::new(chunks)).into_response())
}

/// What happened to a file that is followed, in Nomad's words.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Event {
    /// It is not at its path any more.
    Deleted,
    /// It is shorter than what was read of it: it is read from its beginning again.
    Truncated,
}

impl Event {
    fn text(self) -> &'static str {
        match self {
            Self::Deleted => "file deleted",
            Self::Truncated => "file truncated",
        }
    }
}

/// What a look at a followed stream finds.
#[derive(PartialEq, Eq, Debug)]
enum Look {
    /// What follows the place, and the place behind it.
    Data(Vec<u8>, Position),
    Happened(Event),
    Nothing,
}

/// What is read.
#[derive(Clone)]
enum Source {
    /// The rotated files of one stream of a task.
    Logs { directory: PathBuf, name: String },
    /// One file, and its path as it was asked for.
    File { file: Arc<Found>, shown: String },
}

/// Whose end is the end of what is followed.
struct Watched {
    id: AllocationId,
    /// Without: all tasks.
    task: Option<String>,
}

/// A place in a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Position {
    index: u64,
    offset: u64,
}

impl Source {
    /// The file of this number. Nothing when it is gone, or when something that is no file of the
    /// task's own is in its place.
    fn open(&self, index: u64) -> io::Result<Option<File>> {
        let opened = match self {
            Self::Logs { directory, name } => {
                Folder::open(directory).and_then(|folder| folder.read(&format!("{name}.{index}")))
            }
            Self::File { file, .. } => File::open(file.link()),
        };
        match opened {
            Ok(file) => Ok(Some(file)),
            Err(error) if is_spoiled(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Numbers of the files there are, in order: the newest of them.
    fn indexes(&self) -> io::Result<Vec<u64>> {
        match self {
            Self::Logs { directory, name } => {
                let mut found = log_indexes(&Folder::open(directory)?, name)?;
                found.drain(..found.len().saturating_sub(FILES_MAX));
                Ok(found)
            }
            Self::File { .. } => Ok(vec![0]),
        }
    }

    /// Whether nothing follows when the file is gone.
    fn is_one_file(&self) -> bool {
        matches!(self, Self::File { .. })
    }

    /// The file's name in frames.
    fn shown(&self, index: u64) -> String {
        match self {
            Self::Logs { name, .. } => format!("alloc/logs/{name}.{index}"),
            Self::File { shown, .. } => shown.clone(),
        }
    }

    /// The place `offset` bytes after the start of a log, or before its end. With 0 bytes before
    /// the end it is the beginning of the newest file, as in Nomad, whose clients show the end of a
    /// log this way.
    fn position(&self, from_end: bool, offset: u64) -> io::Result<Position> {
        let mut sizes = Vec::new();
        for index in self.indexes()? {
            // One may have been rotated away since it was listed.
            if let Some(file) = self.open(index)? {
                sizes.push((index, file.metadata()?.len()));
            }
        }
        if let (Self::Logs { .. }, true, 0, Some((newest, _))) =
            (self, from_end, offset, sizes.last())
        {
            return Ok(Position { index: *newest, offset: 0 });
        }
        // A file can say that it is as long as the type allows.
        let total = sizes.iter().fold(0_u64, |sum, (_, size)| sum.saturating_add(*size));
        let mut left = if from_end { total.saturating_sub(offset) } else { offset };
        for (index, size) in &sizes {
            if left < *size {
                return Ok(Position { index: *index, offset: left });
            }
            left = left.saturating_sub(*size);
        }
        Ok(sizes.last().map_or(Position { index: 0, offset: 0 }, |(index, size)| Position {
            index: *index,
            offset: *size,
        }))
    }

    /// What follows a place, and the place behind it; nothing at the end.
    fn read(&self, at: Position) -> io::Result<Option<(Vec<u8>, Position)>> {
        self.read_by(at, || self.indexes())
    }

    /// What follows a place, or why nothing does.
    fn look(&self, at: Position) -> io::Result<Look> {
        Ok(match self.read(at)? {
            Some((data, next)) => Look::Data(data, next),
            None => self.event(at)?.map_or(Look::Nothing, Look::Happened),
        })
    }

    /// What happened to the file of a place of which nothing more is to be read.
    fn event(&self, at: Position) -> io::Result<Option<Event>> {
        let size = match self {
            // The file of a log that was never written to is not missed.
            Self::Logs { .. } if at.offset == 0 => return Ok(None),
            Self::Logs { .. } => self.open(at.index)?.map(|file| file.metadata()).transpose()?,
            Self::File { file, .. } => file.is_in_place()?.then(|| file.metadata()).transpose()?,
        };
        Ok(match size {
            None => Some(Event::Deleted),
            Some(metadata) if metadata.len() < at.offset => Some(Event::Truncated),
            Some(_) => None,
        })
    }

    /// The files are listed once, however many of them are empty.
    fn read_by(
        &self,
        at: Position,
        list: impl Fn() -> io::Result<Vec<u64>>,
    ) -> io::Result<Option<(Vec<u8>, Position)>> {
        if let Some(read) = self.read_file(at)? {
            return Ok(Some(read));
        }
        let later: Vec<u64> = list()?.into_iter().filter(|index| *index > at.index).collect();
        if later.is_empty() {
            return Ok(None);
        }
        // Only a file that has a later one is complete: the rest of it may have come after the read
        // above.
        if let Some(read) = self.read_file(at)? {
            return Ok(Some(read));
        }
        // Also when the file was rotated away: go on with the oldest that is left.
        for index in later {
            if let Some(read) = self.read_file(Position { index, offset: 0 })? {
                return Ok(Some(read));
            }
        }
        Ok(None)
    }

    /// What follows a place in its file; nothing at the file's end, or when it is gone.
    fn read_file(&self, at: Position) -> io::Result<Option<(Vec<u8>, Position)>> {
        let Some(file) = self.open(at.index)? else { return Ok(None) };
        let mut data = vec![0; CHUNK_BYTES];
        let have = file.read_at(&mut data, at.offset)?;
        data.truncate(have);
        let offset = at.offset.saturating_add(have as u64);
        Ok((have > 0).then_some((data, Position { offset, ..at })))
    }
}

struct Reader {
    files: Files,
    watched: Watched,
    source: Source,
    follow: bool,
    plain: bool,
    chunks: mpsc::Sender<io::Result<Bytes>>,
}

impl Reader {
    async fn copy(self, mut at: Position) {
        let mut quiet = 0_u32;
        // Told with the data that follows it.
        let mut truncated = None;
        // A log goes on in another file, so that its deletion is told once.
        let mut is_missed = false;
        loop {
            // Asked before the read: what a task wrote before its end is then in what is read.
            let dead = self.is_dead();
            let source = self.source.clone();
            let read = self.files.work.run(move || Ok(source.look(at)?)).await;
            match read.map_err(io::Error::other) {
                Ok(Look::Data(data, next)) => {
                    quiet = 0;
                    is_missed = false;
                    at = next;
                    if !self.send(&data, at, truncated.take()).await {
                        return;
                    }
                }
                Ok(Look::Happened(_) | Look::Nothing) if !self.follow || dead => return,
                Ok(Look::Happened(Event::Truncated)) => {
                    truncated = Some(Event::Truncated);
                    at.offset = 0;
                }
                Ok(Look::Happened(Event::Deleted)) if !is_missed => {
                    is_missed = true;
                    if !self.send(&[], at, Some(Event::Deleted)).await || self.source.is_one_file()
                    {
                        return;
                    }
                }
                Ok(Look::Happened(Event::Deleted) | Look::Nothing) => {
                    quiet = quiet.wrapping_add(1);
                    if quiet.is_multiple_of(QUIET_LOOKS_MAX) && !self.plain {
                        let sign_of_life = Ok(Bytes::from_static(b"{}"));
                        if self.chunks.send(sign_of_life).await.is_err() {
                            return;
                        }
                    }
                    tokio::select! {
                        () = sleep(FOLLOW_PAUSE) => {}
                        () = self.chunks.closed() => return,
                    }
                }
                Err(error) => {
                    drop(self.chunks.send(Err(error)).await);
                    return;
                }
            }
        }
    }

    fn is_dead(&self) -> bool {
        let Some(view) = self.files.node.view(self.watched.id) else { return true };
        match &self.watched.task {
            Some(name) => {
                view.status.tasks.get(name).is_none_or(|task| task.phase() == TaskPhase::Dead)
            }
            None => view.status.tasks.values().all(|task| task.phase() == TaskPhase::Dead),
        }
    }

    /// Sends what was read, or what happened; false when nobody listens any more.
    async fn send(&self, data: &[u8], end: Position, event: Option<Event>) -> bool {
        let chunk = match (self.plain, data) {
            (true, []) => return true,
            (true, data) => Bytes::copy_from_slice(data),
            (false, data) => frame(&self.source.shown(end.index), data, end.offset, event),
        };
        self.chunks.send(Ok(chunk)).await.is_ok()
    }
}

/// One frame; what is empty is left out.
fn frame(file: &str, data: &[u8], offset: u64, event: Option<Event>) -> Bytes {
    let mut frame = serde_json::json!({ "File": file, "Offset": offset });
    if !data.is_empty() {
        frame["Data"] = BASE64_STANDARD.encode(data).into();
    }
    if let Some(event) = event {
        frame["FileEvent"] = event.text().into();
    }
    Bytes::from(frame.to_string())
}

#[cfg(test)]
mod tests {
    #![expect(clippy::unwrap_used, reason = "tests")]

    use super::*;

    fn path(source: &Source, index: u64) -> PathBuf {
        let Source::Logs { directory, name } = source else { panic!() };
        directory.join(format!("{name}.{index}"))
    }

    fn source(directory: &tempfile::TempDir) -> Source {
        Source::Logs { directory: directory.path().to_owned(), name: "t.stdout".to_owned() }
    }

    #[test]
    fn rotated_files_read_as_one() {
        let directory = tempfile::tempdir().unwrap();
        let source = source(&directory);
        assert_eq!(source.position(true, 5).unwrap(), Position { index: 0, offset: 0 });
        std::fs::write(path(&source, 3), "abcd").unwrap();
        std::fs::write(path(&source, 4), "ef").unwrap();
        for (from_end, offset, expected) in [
            (false, 0, (3, 0)),
            (false, 5, (4, 1)),
            (false, 99, (4, 2)),
            (true, 0, (4, 0)),
            (true, 1, (4, 1)),
            (true, 3, (3, 3)),
            (true, 99, (3, 0)),
        ] {
            let (index, offset_expected) = expected;
            let found = source.position(from_end, offset).unwrap();
            assert_eq!(found, Position { index, offset: offset_expected }, "{from_end} {offset}");
        }
        let (data, at) = source.read(Position { index: 1, offset: 7 }).unwrap().unwrap();
        assert_eq!(data, b"abcd");
        let (data, at) = source.read(at).unwrap().unwrap();
        assert_eq!(data, b"ef");
        assert_eq!(source.read(at).unwrap(), None);
    }

    #[test]
    fn a_log_that_is_deleted_or_cut_off_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let source = source(&directory);
        let (start, end) = (Position { index: 3, offset: 0 }, Position { index: 3, offset: 4 });
        assert_eq!(source.look(start).unwrap(), Look::Nothing, "nothing was there");
        std::fs::write(path(&source, 3), "abcd").unwrap();
        assert_eq!(source.look(start).unwrap(), Look::Data(b"abcd".to_vec(), end));
        assert_eq!(source.look(end).unwrap(), Look::Nothing);
        std::fs::write(path(&source, 3), "ab").unwrap();
        assert_eq!(source.look(end).unwrap(), Look::Happened(Event::Truncated));
        std::fs::remove_file(path(&source, 3)).unwrap();
        assert_eq!(source.look(end).unwrap(), Look::Happened(Event::Deleted));
        // What was written behind it is read first.
        std::fs::write(path(&source, 4), "ef").unwrap();
        let next = Position { index: 4, offset: 2 };
        assert_eq!(source.look(end).unwrap(), Look::Data(b"ef".to_vec(), next));
        let told = frame("alloc/logs/t.stdout.3", &[], 4, Some(Event::Deleted));
        let expected = serde_json::json!({
            "File": "alloc/logs/t.stdout.3", "Offset": 4, "FileEvent": "file deleted",
        });
        assert_eq!(serde_json::from_slice::<serde_json::Value>(&told).unwrap(), expected);
    }

    #[test]
    fn a_file_that_is_deleted_replaced_or_cut_off_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let at = std::fs::canonicalize(directory.path()).unwrap().join("data");
        let end = Position { index: 0, offset: 4 };
        let follow = || {
            std::fs::write(&at, "abcd").unwrap();
            let file = Arc::new(super::super::files::resolve(directory.path(), "data").unwrap());
            let source = Source::File { file, shown: "data".to_owned() };
            assert_eq!(source.look(end).unwrap(), Look::Nothing);
            source
        };
        let source = follow();
        std::fs::write(&at, "a").unwrap();
        assert_eq!(source.look(end).unwrap(), Look::Happened(Event::Truncated));
        let source = follow();
        std::fs::remove_file(&at).unwrap();
        assert_eq!(source.look(end).unwrap(), Look::Happened(Event::Deleted));
        // Another file has its name now.
        let source = follow();
        std::fs::write(directory.path().join("other"), "abcdef").unwrap();
        std::fs::rename(directory.path().join("other"), &at).unwrap();
        assert_eq!(source.look(end).unwrap(), Look::Happened(Event::Deleted));
    }

    #[test]
    fn lines_written_between_a_files_end_and_its_rotation_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let source = source(&directory);
        std::fs::write(path(&source, 3), "abcd").unwrap();
        let list_after_rotation = || {
            std::fs::write(path(&source, 3), "abcdef")?;
            std::fs::write(path(&source, 4), "gh")?;
            source.indexes()
        };
        let end = Position { index: 3, offset: 4 };
        let (data, at) = source.read_by(end, list_after_rotation).unwrap().unwrap();
        assert_eq!(data, b"ef");
        let (data, at) = source.read(at).unwrap().unwrap();
        assert_eq!(data, b"gh");
        assert_eq!(source.read(at).unwrap(), None);
    }

    #[test]
    fn a_file_that_is_gone_since_it_was_listed_is_passed_over() {
        let directory = tempfile::tempdir().unwrap();
        let source = source(&directory);
        // A link to nothing is listed, and no file is found.
        std::os::unix::fs::symlink("nothing", path(&source, 2)).unwrap();
        std::fs::write(path(&source, 3), "abcd").unwrap();
        for (from_end, offset) in [(false, 1), (true, 3)] {
            let found = source.position(from_end, offset).unwrap();
            assert_eq!(found, Position { index: 3, offset: 1 }, "{from_end} {offset}");
        }
        let (data, _) = source.read(Position { index: 2, offset: 7 }).unwrap().unwrap();
        assert_eq!(data, b"abcd");
    }

    #[test]
    fn a_file_that_is_no_log_of_the_task_is_neither_shown_nor_waited_for() {
        let directory = tempfile::tempdir().unwrap();
        let source = source(&directory);
        let secret = directory.path().join("secret");
        std::fs::write(&secret, "secret").unwrap();
        std::os::unix::fs::symlink(&secret, path(&source, 0)).unwrap();
        std::fs::hard_link(&secret, path(&source, 1)).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path(&source, 2),
            rustix::fs::FileType::Fifo,
            rustix::fs::Mode::RWXU,
            0,
        )
        .unwrap();
        std::fs::write(path(&source, 3), "own").unwrap();
        std::fs::write(path(&source, u64::MAX), "no log").unwrap();
        let start = source.position(false, 0).unwrap();
        assert_eq!(start, Position { index: 3, offset: 0 });
        let (data, at) = source.read(Position { index: 0, offset: 0 }).unwrap().unwrap();
        assert_eq!(data, b"own");
        assert_eq!(source.read(at).unwrap(), None);
    }

    #[test]
    fn sizes_near_the_end_of_their_type_are_counted() {
        let directory = tempfile::tempdir().unwrap();
        let source = source(&directory);
        for index in 0..3 {
            let file = File::create(path(&source, index)).unwrap();
            // The largest that the file system takes: some take less than others.
            let mut sizes = (40..63).rev().map(|bits| (1_u64 << bits) - 1);
            sizes.find(|size| file.set_len(*size).is_ok()).unwrap();
        }
        for (from_end, offset) in [(true, 0), (true, u64::MAX), (false, u64::MAX), (false, 1 << 63)]
        {
            let at = source.position(from_end, offset).unwrap();
            assert!(source.read(at).is_ok(), "{at:?}");
        }
    }

    #[test]
    fn thousands_of_empty_logs_are_listed_once_for_a_read() {
        let directory = tempfile::tempdir().unwrap();
        let source = source(&directory);
        for index in 0..12_000 {
            File::create(path(&source, index)).unwrap();
        }
        let listed = std::cell::Cell::new(0);
        let list = || {
            listed.set(listed.get() + 1);
            source.indexes()
        };
        let start = source.position(false, 0).unwrap();
        assert_eq!(source.read_by(Position { index: 0, ..start }, list).unwrap(), None);
        assert_eq!(listed.get(), 1);
        assert_eq!(source.indexes().unwrap().len(), FILES_MAX);
        std::fs::write(path(&source, 11_999), "end").unwrap();
        let (data, _) = source.read(Position { index: 0, offset: 0 }).unwrap().unwrap();
        assert_eq!(data, b"end");
    }
}
