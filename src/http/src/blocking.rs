//! Blocking queries: the parameters `index` and `wait`. The answer is sent when the result's index
//! exceeds `index`, or when `wait` is over.
//!
//! As in Nomad, the index of a list is the index of its tables, and a query with an older index is
//! answered at once. A query that waits is woken only when its [`Extent`] changes, that is, the
//! part of the state that it asks about. So a thousand watchers of one job each do not all answer
//! to a change of any job.
//!
//! ```text
//!  first snapshot (linearizable unless stale) ─► index newer? ─► answer
//!        ▲                                          │ no
//!        └── local snapshot, newer than the last ◄──┴── Api::changed(tables, index of the snapshot)
//! ```
//! No change is missed. The wait begins at the index of the snapshot that was examined, and
//! [`wire::api::Api::changed`] returns at once if a table has changed since. No snapshot is held
//! while waiting.

use std::{sync::Arc, time::Duration};

use axum::http::StatusCode;
use bytes::Bytes;
use fsm::{Extent, Index, State, table::TableId};
use serde::Serialize;
use tokio::time::Instant;
use wire::api::{ApiError, Limit, ReadMode, Snapshot};

use super::{
    answer::{Answer, Meta},
    call::Call,
    error::Error,
    list::{List, Paging},
};
use crate::serve::Closing;

/// Longest and default wait (Nomad's `MaxBlockingRPCQueryTime`).
const WAIT_MAX: Duration = Duration::from_mins(5);
/// Tables whose lists have index 0 in Nomad until they are first written. A query with index 0 does
/// not wait.
const ZERO_FIRST: [TableId; 3] = [TableId::Jobs, TableId::Evaluations, TableId::Allocations];
/// If the largest table of a list has more rows than this, the body is built on a thread of its
/// own.
const ROWS_INLINE_MAX: usize = 2_000;

impl Call {
    /// Answers with one object. `view` returns `None` if it does not exist; the error then names it
    /// as `what`.
    pub(crate) async fn item<T: Serialize>(
        &self,
        what: &str,
        tables: &'static [TableId],
        index: impl Fn(&State) -> Option<Index> + Send + Sync,
        view: impl FnOnce(&State) -> Option<T> + Send + Sync,
    ) -> Result<Answer, Error> {
        let body = |state: &State| view(state).map(|value| self.body_of(&value)).transpose();
        self.item_body(what, tables, index, body).await
    }

    /// Like [`Self::item`], with an encoded body.
    pub(crate) async fn item_body(
        &self,
        what: &str,
        tables: &'static [TableId],
        index: impl Fn(&State) -> Option<Index> + Send + Sync,
        body: impl FnOnce(&State) -> Result<Option<Bytes>, Error> + Send + Sync,
    ) -> Result<Answer, Error> {
        let extent =
            |state: &State| if index(state).is_some() { Extent::Whole } else { Extent::Nothing };
        self.item_within(what, tables, (&index, extent), body).await
    }

    /// Like [`Self::item_body`], for an object that consists of several rows. `extent` says which
    /// change of the state ends a wait.
    pub(crate) async fn item_within(
        &self,
        what: &str,
        tables: &'static [TableId],
        (index, extent): (
            impl Fn(&State) -> Option<Index> + Send + Sync,
            impl Fn(&State) -> Extent + Send + Sync,
        ),
        body: impl FnOnce(&State) -> Result<Option<Bytes>, Error> + Send + Sync,
    ) -> Result<Answer, Error> {
        let index = |state: &State| index(state).unwrap_or_else(|| tables_index(state, tables));
        let snapshot = self.snapshot(tables, &index, &extent).await?;
        let meta = Meta::of(&snapshot, index(&snapshot.state));
        let Some(body) = body(&snapshot.state)? else {
            return Err(Error::not_found(what).with_meta(meta));
        };
        self.answer_body(body, Some(meta))
    }

    /// Answers with one object that is derived from many rows of `tables`. Its index is that of the
    /// tables.
    pub(crate) async fn derived<T: Serialize>(
        &self,
        what: &str,
        tables: &'static [TableId],
        extent: impl Fn(&State) -> Extent + Send + Sync,
        view: impl FnOnce(&State) -> Option<T> + Send + Sync,
    ) -> Result<Answer, Error> {
        let index = |state: &State| tables_index(state, tables);
        let snapshot = self.snapshot(tables, &index, &extent).await?;
        let meta = Meta::of(&snapshot, index(&snapshot.state));
        match view(&snapshot.state) {
            Some(value) => self.answer(&value, Some(meta)),
            None => Err(Error::not_found(what).with_meta(meta)),
        }
    }

    /// Answers with a value that depends on whole tables.
    pub(crate) async fn document<T: Serialize>(
        &self,
        tables: &'static [TableId],
        view: impl FnOnce(&State) -> Result<T, Error> + Send + Sync,
    ) -> Result<Answer, Error> {
        let index = |state: &State| tables_index(state, tables);
        let snapshot = self.snapshot(tables, &index, &whole).await?;
        let value = view(&snapshot.state)?;
        self.answer(&value, Some(Meta::of(&snapshot, index(&snapshot.state))))
    }

    /// Like [`Self::document`], for a view that reads every row. With many rows it waits for its
    /// turn, see [`Self::in_turn`].
    pub(crate) async fn document_in_turn<T: Serialize + Send + 'static>(
        &self,
        tables: &'static [TableId],
        view: impl FnOnce(&State) -> Result<T, Error> + Send + 'static,
    ) -> Result<Answer, Error> {
        let index = |state: &State| tables_index(state, tables);
        let snapshot = self.snapshot(tables, &index, &whole).await?;
        let meta = Meta::of(&snapshot, index(&snapshot.state));
        let state = snapshot.state;
        let rows = tables.iter().map(|table| state.table_len(*table)).max().unwrap_or(0);
        let value = self.in_turn(rows, move || view(&state)).await?;
        self.answer(&value, Some(meta))
    }

    /// Answers with a list that depends on whole tables.
    pub(crate) async fn list(
        &self,
        tables: &'static [TableId],
        fill: impl FnOnce(&State, &mut List) -> Result<(), Error> + Send + 'static,
    ) -> Result<Answer, Error> {
        self.list_within(tables, whole, fill).await
    }

    /// Answers with a list that depends on a part of its tables. Only a change of that part ends a
    /// wait.
    pub(crate) async fn list_within(
        &self,
        tables: &'static [TableId],
        extent: impl Fn(&State) -> Extent + Send + Sync,
        fill: impl FnOnce(&State, &mut List) -> Result<(), Error> + Send + 'static,
    ) -> Result<Answer, Error> {
        let (paging, filter) = (Paging::of(self)?, self.filter().await?);
        let pretty = self.flag("pretty")?;
        let index = |state: &State| tables_index(state, tables);
        let snapshot = self.snapshot(tables, &index, &extent).await?;
        let mut meta = Meta::of(&snapshot, index(&snapshot.state));
        let is_unwritten =
            |table: &TableId| ZERO_FIRST.contains(table) && !snapshot.state.was_written(*table);
        if !tables.is_empty() && tables.iter().all(is_unwritten) {
            meta.index = 0;
        }
        let mut list = List::new(paging, filter, self.options.response_bytes_max);
        let state = snapshot.state;
        let rows = tables.iter().map(|table| state.table_len(*table)).max().unwrap_or(0);
        let answers = self.answers.clone();
        let finish = move || {
            fill(&state, &mut list)?;
            let (body, next_token) = list.finish(pretty)?;
            Ok((answers.hold(body)?, next_token))
        };
        let (body, next_token) = self.in_turn(rows, finish).await?;
        meta.next_token = next_token;
        Ok(Answer::json(StatusCode::OK, body, Some(meta)))
    }

    /// Runs `work`, which reads `rows` rows. With few rows it runs here; with many it waits for a
    /// permit and runs on a heavy thread.
    pub(crate) async fn in_turn<T: Send + 'static>(
        &self,
        rows: usize,
        work: impl FnOnce() -> Result<T, Error> + Send + 'static,
    ) -> Result<T, Error> {
        // A filter may be expensive even on few rows.
        if rows <= ROWS_INLINE_MAX && self.parameter("filter").is_none() {
            return work();
        }
        let turn = Arc::clone(&self.lists).acquire_owned();
        let turn = tokio::time::timeout(self.options.timeout, turn).await;
        let Ok(Ok(turn)) = turn else { return Err(self.lists_overloaded()) };
        let build = move || {
            let built = work();
            // The list is built to its end even if the client has gone. The permit is held until
            // then.
            drop(turn);
            built
        };
        self.options.heavy.run_blocking(build).await
    }

    fn lists_overloaded(&self) -> Error {
        let limit = self.options.large_lists_max as u64;
        ApiError::Overloaded { what: Limit::LargeLists, limit, retry_after_ms: 1_000 }.into()
    }

    /// Waits for the snapshot to answer with. That is the first at which `index` exceeds the
    /// client's index and `extent` has changed since the wait began. If the wait ends before, it is
    /// the last one seen.
    async fn snapshot(
        &self,
        tables: &'static [TableId],
        index: &(impl Fn(&State) -> Index + Send + Sync),
        extent: &(impl Fn(&State) -> Extent + Send + Sync),
    ) -> Result<Snapshot, Error> {
        let mode = self.read_mode()?;
        let Some(seen) = self.number("index")?.filter(|seen| *seen > 0) else {
            return self.read().await;
        };
        let deadline = Instant::now() + self.wait()?;
        let mut snapshot = match mode {
            ReadMode::Linearizable => self.read().await?,
            ReadMode::Stale => self.caught_up(seen, deadline).await?,
        };
        let mut before: Option<Extent> = None;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let newer = index(&snapshot.state) > seen;
            let now = extent(&snapshot.state);
            let changed = before.as_ref().is_none_or(|before| !now.is_same(before));
            if (newer && changed) || left.is_zero() {
                return Ok(snapshot);
            }
            // The client has seen every change up to its index.
            before = Some(now);
            let looked_at = snapshot.state.index();
            drop(snapshot);
            tokio::select! {
                () = self.api.changed(&self.caller, tables, looked_at, left) => {}
                () = closing(self.closing.clone()) => return Err(stopping()),
            }
            snapshot = self
                .api
                .read(&self.caller, ReadMode::Stale, looked_at, self.options.timeout)
                .await?;
        }
    }

    /// A stale snapshot that is at least as new as the index `seen`. If none comes before the
    /// deadline, a linearizable one is returned, which may be older than `seen`: then the client's
    /// index is from before a restore or from another cluster, and the client must start over.
    /// Otherwise this server lags.
    async fn caught_up(&self, seen: Index, deadline: Instant) -> Result<Snapshot, Error> {
        let left = deadline.saturating_duration_since(Instant::now());
        let caught_up = tokio::select! {
            read = self.api.read(&self.caller, ReadMode::Stale, seen, left) => read,
            () = closing(self.closing.clone()) => return Err(stopping()),
        };
        match caught_up {
            Err(ApiError::Timeout { .. }) => Ok(self
                .api
                .read(&self.caller, ReadMode::Linearizable, 0, self.options.timeout)
                .await?),
            other => Ok(other?),
        }
    }

    /// How long a blocking query may take: `wait` plus a sixteenth, as in Nomad.
    fn wait(&self) -> Result<Duration, Error> {
        let wait = match self.parameter("wait") {
            None | Some("") => WAIT_MAX,
            Some(text) => calendar::parse_go_duration(text)
                .ok_or_else(|| Error::bad(format!("wait: `{text}` is not a duration like 5m")))?,
        };
        let wait = if wait.is_zero() { WAIT_MAX } else { wait.min(WAIT_MAX) };
        Ok(wait + wait / 16)
    }
}

fn stopping() -> Error {
    ApiError::NotReady("this server is stopping".to_owned()).into()
}

async fn closing(closing: Option<Closing>) {
    match closing {
        Some(closing) => closing.closed().await,
        None => std::future::pending().await,
    }
}

fn whole(_: &State) -> Extent {
    Extent::Whole
}

/// The index of the last change of one of the tables. Without tables it is 1, because nothing ever
/// changes.
pub(crate) fn tables_index(state: &State, tables: &[TableId]) -> Index {
    tables.iter().map(|table| state.table_index(*table)).max().unwrap_or(1)
}
