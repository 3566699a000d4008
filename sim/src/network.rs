//! The simulated network: real encoded messages between servers, with latency, loss, duplicates, one-way cuts and servers that die.
//!
//! ```text
//!  caller ─► request leg (latency | lost) ─► whoever has the address then: its own service code ─► reply leg (latency | lost) ─► caller
//!             └ now and then once more, later, perhaps to a restarted server
//!  stream: as a connection: in order, nothing lost inside; a cut holds it up, and breaks it after a while
//! ```
//!
//! A call to a server that is down is refused; one that is lost, or whose reply is, breaks the connection after a while, as keep-alive finds out,
//! unless its own timeout ends it before. Deliveries belong to the network, not to the caller: a request of a server that died meanwhile still
//! arrives, and one to such a server reaches the next one at its address. Each link has its own latencies, so that messages overtake each other.
//! The network also sees every vote that is granted, and judges it (I1).

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream::BoxStream};
use prost::Message as _;
use proto::v1 as pb;
use serde::{Deserialize, Serialize};
use tonic::Status;

use crate::{
    coverage,
    invariants::Votes,
    services::{Messages, Services},
    trace, verdict,
};
use chance::Dice;
use ground::rt::{self, Group, Instant, mpsc, oneshot, watch};
use wire::rpc::transport::{Lane, ReplyStream, Transport};

/// Messages of one stream and direction that are under way.
const STREAM_MESSAGES_MAX: usize = 64;
/// How long opening a connection into a cut takes to fail, as the production transport has it.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(500);
/// Between the tries of a connection that a cut holds up.
const RETRANSMIT: Duration = Duration::from_millis(200);
/// Longest time until a connection into a cut is given up: keep-alive and its timeout, as the production transport has them.
const PATIENCE_MS_MAX: u64 = 10_000;

/// What a server says to a peer that its disk has to hold already.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Promise {
    /// Its own number, and term and number it votes for.
    Voted(u64, (u64, u64)),
    /// Its log holds everything up to this index.
    Appended(u64),
}

type JudgePromise = Arc<dyn Fn(&str, Promise) + Send + Sync>;

/// How bad the network is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Weather {
    /// Shortest latency of one way.
    pub(crate) latency_us_min: u64,
    /// Longest latency of one way.
    pub(crate) latency_us_max: u64,
    /// Messages per million that take much longer.
    pub(crate) spike_ppm: u64,
    /// How long they take at most.
    pub(crate) spike_us_max: u64,
    /// Messages lost per million, of calls that are not part of a stream.
    pub(crate) loss_ppm: u64,
    /// Requests delivered twice per million.
    pub(crate) duplicate_ppm: u64,
    /// Requests delivered once more seconds later per million.
    pub(crate) late_ppm: u64,
}

/// A quiet network.
pub(crate) const CALM: Weather = Weather {
    latency_us_min: 200,
    latency_us_max: 5_000,
    spike_ppm: 0,
    spike_us_max: 1,
    loss_ppm: 0,
    duplicate_ppm: 0,
    late_ppm: 0,
};

#[derive(Clone)]
struct Endpoint {
    name: String,
    group: Group,
    services: Services,
    incarnation: u64,
}

/// A write of unknown outcome that came after the heal would undo what is asked for then, and be right; so it is lost.
const FORWARDED_WRITE: &str = "/quorate.v1.Cluster/Write";

/// Cuts that are mended together.
#[derive(Clone, Debug)]
pub(crate) struct Cut {
    links: Vec<(String, String)>,
    /// Of [`Network::mend`]: a cut of before is no more.
    epoch: u64,
}

struct State {
    dice: Dice,
    weather: Weather,
    /// Live servers by address.
    endpoints: BTreeMap<String, Endpoint>,
    /// Directed links that carry nothing, and for how many reasons.
    cuts: BTreeMap<(String, String), u32>,
    epoch: u64,
    is_whole: bool,
    messages: u64,
    /// Latest arrival on each link.
    arrivals: BTreeMap<(String, String), Instant>,
    votes: Votes,
    judge: Option<JudgePromise>,
}

/// The network.
#[derive(Clone)]
pub(crate) struct Network {
    state: Arc<Mutex<State>>,
    group: Group,
}

/// Everything about one message but its bytes.
#[derive(Clone)]
struct Route {
    from: String,
    to: String,
    path: &'static str,
    number: u64,
    /// Incarnation of the receiver when it was sent; 0: nobody listened.
    receiver: u64,
    /// It was sent before the links were mended for good.
    in_faults: bool,
}

impl Network {
    /// A calm network without servers.
    pub(crate) fn new(seed: u64) -> Self {
        let state = State {
            dice: Dice::named(seed, "network"),
            weather: CALM,
            endpoints: BTreeMap::new(),
            cuts: BTreeMap::new(),
            epoch: 0,
            is_whole: false,
            messages: 0,
            arrivals: BTreeMap::new(),
            votes: Votes::default(),
            judge: None,
        };
        Self { state: Arc::new(Mutex::new(state)), group: rt::new_group() }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets somebody look at each promise that leaves a server.
    pub(crate) fn judge_promises(&self, judge: JudgePromise) {
        self.lock().judge = Some(judge);
    }

    fn promised(&self, who: &str, promise: Promise) {
        let judge = self.lock().judge.clone();
        if let Some(judge) = judge {
            judge(who, promise);
        }
    }

    /// What a reply to an append promises.
    fn judge_append(&self, who: &str, reply: &[u8]) {
        use pb::append_entries_reply::Outcome;
        if let Ok(reply) = pb::AppendEntriesReply::decode(reply)
            && let Some(Outcome::StreamSuccess(id) | Outcome::PartialSuccess(id)) = reply.outcome
        {
            self.promised(who, Promise::Appended(id.index));
        }
    }

    /// A server listens.
    pub(crate) fn listen(
        &self,
        address: &str,
        name: String,
        group: Group,
        (incarnation, services): (u64, Services),
    ) {
        let endpoint = Endpoint { name, group, services, incarnation };
        self.lock().endpoints.insert(address.to_owned(), endpoint);
    }

    /// Nobody listens there any more.
    pub(crate) fn close(&self, address: &str) {
        self.lock().endpoints.remove(address);
    }

    /// Changes the weather.
    pub(crate) fn set_weather(&self, weather: Weather) {
        trace::event("net", format_args!("{weather:?}"));
        self.lock().weather = weather;
    }

    /// Cuts links, each in one direction, until they are mended.
    pub(crate) fn cut(&self, links: Vec<(String, String)>) -> Cut {
        let links = if self.is_whole() { Vec::new() } else { links };
        self.cut_off(links)
    }

    /// The same, also when the faults are over.
    pub(crate) fn cut_off(&self, links: Vec<(String, String)>) -> Cut {
        let mut state = self.lock();
        for (from, to) in &links {
            trace::event("net", format_args!("cut {from} {to}"));
            *state.cuts.entry((from.clone(), to.clone())).or_default() += 1;
        }
        Cut { links, epoch: state.epoch }
    }

    /// Takes these cuts away; a link that is also cut for another reason stays cut.
    pub(crate) fn uncut(&self, cut: &Cut) {
        let mut state = self.lock();
        if state.epoch != cut.epoch {
            return;
        }
        trace::event("net", format_args!("mend {} links", cut.links.len()));
        for link in &cut.links {
            let left = state.cuts.get_mut(link).map(|reasons| {
                *reasons -= 1;
                *reasons
            });
            if left == Some(0) {
                state.cuts.remove(link);
            }
        }
    }

    /// Mends every link, for good: later cuts are not made.
    pub(crate) fn mend(&self) {
        let mut state = self.lock();
        state.epoch += 1;
        state.is_whole = true;
        if !state.cuts.is_empty() {
            trace::event("net", format_args!("mend"));
            state.cuts.clear();
        }
    }

    fn is_whole(&self) -> bool {
        self.lock().is_whole
    }

    /// Messages so far.
    pub(crate) fn messages(&self) -> u64 {
        self.lock().messages
    }

    /// What a client at `from` calls through.
    pub(crate) fn transport(&self, from: &str) -> SimTransport {
        SimTransport { network: self.clone(), from: from.to_owned() }
    }

    fn endpoint(&self, address: &str) -> Option<Endpoint> {
        self.lock().endpoints.get(address).cloned()
    }

    fn is_cut(&self, from: &str, to: &str) -> bool {
        self.lock().cuts.contains_key(&(from.to_owned(), to.to_owned()))
    }

    fn latency(&self) -> Duration {
        let mut state = self.lock();
        let weather = state.weather;
        let spike = state.dice.chance_ppm(weather.spike_ppm);
        let usual = state.dice.between(weather.latency_us_min, weather.latency_us_max);
        let extra = if spike { state.dice.below(weather.spike_us_max) } else { 0 };
        Duration::from_micros(usual + extra)
    }

    /// The time one message takes, if it arrives.
    fn leg(&self, from: &str, to: &str) -> Option<Duration> {
        if from == to {
            return Some(Duration::ZERO);
        }
        let latency = self.latency();
        let mut state = self.lock();
        let loss_ppm = state.weather.loss_ppm;
        let link = (from.to_owned(), to.to_owned());
        if state.dice.chance_ppm(loss_ppm) {
            coverage::hit("a message was lost");
            return None;
        }
        if state.cuts.contains_key(&link) {
            return None;
        }
        let at = Instant::now() + latency;
        let latest = state.arrivals.entry(link).or_insert(at);
        if at < *latest {
            coverage::hit("a message was overtaken");
        }
        *latest = at.max(*latest);
        Some(latency)
    }

    /// How long a connection with a lost message goes on before keep-alive ends it.
    async fn break_connection(&self) -> Status {
        let patience = Duration::from_millis(self.lock().dice.between(200, PATIENCE_MS_MAX));
        rt::sleep(patience).await;
        Status::unavailable("connection lost")
    }

    fn number(&self) -> u64 {
        let mut state = self.lock();
        state.messages += 1;
        state.messages
    }

    /// When a request comes once more. A lease handed out twice would only wait for its timer; everything else has to bear it.
    fn second_delivery(&self, path: &str) -> Option<Duration> {
        let mut state = self.lock();
        let Weather { duplicate_ppm, late_ppm, .. } = state.weather;
        let soon = state.dice.chance_ppm(duplicate_ppm);
        let late = state.dice.chance_ppm(late_ppm);
        if path.ends_with("/Dequeue") {
            return None;
        }
        let (what, least, most) = match (late, soon) {
            (true, _) => ("a message was delivered late", 1_000_000, 12_000_000),
            (false, true) => ("a message was delivered twice", 1, 20_000),
            (false, false) => return None,
        };
        coverage::hit(what);
        Some(Duration::from_micros(state.dice.between(least, most)))
    }

    async fn call(&self, route: Route, body: Bytes) -> Result<Bytes, Status> {
        let Route { from, to, path, number, .. } = &route;
        let hash = trace::hash(&body);
        trace::event(from, format_args!("> {to} {number} {path} {} {hash:016x}", body.len()));
        if let Some(delay) = self.second_delivery(path) {
            let (network, route, body) = (self.clone(), route.clone(), body.clone());
            rt::spawn_in(self.group, async move {
                rt::sleep(delay).await;
                drop(network.deliver(&route, body).await);
            });
        }
        let (reply, answer) = oneshot::channel();
        let Some(delay) = self.leg(from, to) else {
            trace::event("net", format_args!("lost {number}"));
            return Err(self.break_connection().await);
        };
        let network = self.clone();
        rt::spawn_in(self.group, async move {
            rt::sleep(delay).await;
            let result = network.deliver(&route, body).await;
            let result = match network.leg(&route.to, &route.from) {
                Some(delay) => {
                    rt::sleep(delay).await;
                    result
                }
                None => {
                    trace::event("net", format_args!("lost reply {}", route.number));
                    Err(network.break_connection().await)
                }
            };
            drop(reply.send(result));
        });
        answer.await.unwrap_or_else(|_| Err(Status::unavailable("the network ended")))
    }

    /// I1: who was granted a vote is for all to see.
    fn judge_vote(&self, who: &str, request: &[u8], reply: &[u8]) {
        let (Ok(request), Ok(reply)) =
            (pb::VoteRequest::decode(request), pb::VoteReply::decode(reply))
        else {
            return;
        };
        let (Some(header), Some(vote)) = (request.header, request.vote) else { return };
        if reply.granted
            && let Some(candidate) = vote.voted_for
        {
            verdict::note(self.lock().votes.granted(header.to, vote.term, candidate));
            self.promised(who, Promise::Voted(header.to, (vote.term, candidate)));
        }
    }

    /// Hands a request to whoever has the address now.
    async fn deliver(&self, route: &Route, body: Bytes) -> Result<Bytes, Status> {
        let Some(endpoint) = self.endpoint(&route.to) else {
            trace::event("net", format_args!("refused {}", route.number));
            return Err(Status::unavailable("connection refused"));
        };
        if route.in_faults && route.path == FORWARDED_WRITE && self.is_whole() {
            trace::event("net", format_args!("lost {}, too old", route.number));
            return Err(Status::unavailable("connection reset"));
        }
        trace::event(&endpoint.name, format_args!("< {} {}", route.from, route.number));
        if route.receiver != 0 && route.receiver != endpoint.incarnation {
            coverage::hit("a message of an old incarnation reached a restarted server");
        }
        let request = body.clone();
        let handler = endpoint.services.unary(route.path, body);
        match rt::spawn_in(endpoint.group, handler).await {
            Ok(result) => {
                match &result {
                    Ok(reply) => {
                        match route.path {
                            "/quorate.v1.Raft/Vote" => self.judge_vote(&route.to, &request, reply),
                            "/quorate.v1.Raft/SnapshotChunk" => saw_snapshot(reply),
                            _ => {}
                        }
                        let (size, hash) = (reply.len(), trace::hash(reply));
                        trace::event(
                            &endpoint.name,
                            format_args!("= {} {size} {hash:016x}", route.number),
                        );
                    }
                    Err(status) => {
                        let (code, text) = (status.code(), status.message());
                        trace::event(
                            &endpoint.name,
                            format_args!("= {} {code:?} {text}", route.number),
                        );
                    }
                }
                result
            }
            Err(_) => {
                trace::event(&endpoint.name, format_args!("died with {}", route.number));
                Err(Status::unavailable("connection reset"))
            }
        }
    }

    async fn open(&self, route: Route, input: Messages) -> Result<ReplyStream, Status> {
        let Route { from, to, path, number, .. } = &route;
        trace::event(from, format_args!("connect {to} {number} {path}"));
        if self.is_cut(from, to) || self.is_cut(to, from) {
            rt::sleep(CONNECT_TIMEOUT).await;
            return Err(Status::unavailable("connect timeout"));
        }
        rt::sleep(self.latency() + self.latency()).await;
        let Some(endpoint) = self.endpoint(to) else {
            return Err(Status::unavailable("connection refused"));
        };
        let (replies, answer) = mpsc::channel(STREAM_MESSAGES_MAX);
        let (open, closed) = watch::channel(());
        let caller = Caller { closed, replies: replies.downgrade() };
        let pump = |route: &Route| Pump { network: self.clone(), route: route.clone() };
        let back = Route { from: to.clone(), to: from.clone(), ..route.clone() };
        let (sent, arriving) = mpsc::channel(STREAM_MESSAGES_MAX);
        let (handed, received) = mpsc::channel(STREAM_MESSAGES_MAX);
        let (answered, returning) = mpsc::channel(STREAM_MESSAGES_MAX);
        // In the caller's group: its side of the connection dies with it.
        rt::spawn(pump(&route).send(input, sent, Some(caller.closed.clone())));
        rt::spawn_in(self.group, pump(&route).carry(arriving, handed, caller.clone()));
        let serve = pump(&back).serve(endpoint.services, received, answered);
        let server = rt::spawn_in(endpoint.group, serve);
        let (network, backward) = (self.clone(), pump(&back));
        rt::spawn_in(self.group, async move {
            backward.carry(returning, replies.clone(), caller).await;
            if server.await.is_err() {
                rt::sleep(network.latency()).await;
                drop(replies.send(Err(Status::unavailable("connection reset"))).await);
            }
        });
        let mut answer = messages(answer);
        Ok(futures_util::stream::poll_fn(move |context| {
            let _held: &watch::Sender<()> = &open;
            answer.poll_next_unpin(context)
        })
        .boxed())
    }
}

fn saw_snapshot(reply: &[u8]) {
    if pb::SnapshotChunkReply::decode(reply).is_ok_and(|reply| reply.vote.is_some()) {
        coverage::hit("a snapshot was sent to a follower");
    }
}

type Sender = mpsc::Sender<Result<Bytes, Status>>;
/// Messages with the time at which they arrive.
type Timed = (Instant, Result<Bytes, Status>);

fn messages(mut queue: mpsc::Receiver<Result<Bytes, Status>>) -> Messages {
    futures_util::stream::poll_fn(move |context| queue.poll_recv(context)).boxed()
}

/// The end of a stream that opened it, as the others see it.
#[derive(Clone)]
struct Caller {
    /// Its sender is gone when the caller has let go of the stream.
    closed: watch::Receiver<()>,
    replies: mpsc::WeakSender<Result<Bytes, Status>>,
}

async fn until_closed(closed: &mut watch::Receiver<()>) {
    while closed.changed().await.is_ok() {}
}

/// One direction of a stream.
struct Pump {
    network: Network,
    route: Route,
}

impl Pump {
    /// The sender's side: gives each message its time of arrival, in order.
    async fn send(
        self,
        mut input: Messages,
        sent: mpsc::Sender<Timed>,
        closed: Option<watch::Receiver<()>>,
    ) {
        let mut last = Instant::now();
        let mut closed = std::pin::pin!(async move {
            match closed {
                Some(mut closed) => until_closed(&mut closed).await,
                None => std::future::pending().await,
            }
        });
        loop {
            let message = rt::select! {
                biased;
                () = &mut closed => return,
                () = sent.closed() => return,
                message = input.next() => message,
            };
            let Some(message) = message else { return };
            self.note(">>", &message);
            last = last.max(Instant::now() + self.network.latency());
            if sent.send((last, message)).await.is_err() {
                return;
            }
        }
    }

    /// The wire: hands messages over when their time has come; a cut breaks the connection, which the caller sees after a while.
    async fn carry(self, mut arriving: mpsc::Receiver<Timed>, to: Sender, mut caller: Caller) {
        loop {
            let next = rt::select! {
                biased;
                () = until_closed(&mut caller.closed) => return,
                next = arriving.recv() => next,
            };
            let Some((at, message)) = next else { return };
            rt::sleep_until(at).await;
            if !self.gets_through().await {
                coverage::hit("a stream broke");
                if let Some(replies) = caller.replies.upgrade() {
                    drop(replies.send(Err(Status::unavailable("connection lost"))).await);
                }
                return;
            }
            self.note("<<", &message);
            if to.send(message).await.is_err() {
                return;
            }
        }
    }

    /// A cut holds a connection up: it goes on by a retransmission when the cut is mended, unless it was given up before.
    async fn gets_through(&self) -> bool {
        let (from, to) = (&self.route.from, &self.route.to);
        if !self.network.is_cut(from, to) {
            return true;
        }
        let patience = Duration::from_millis(self.network.lock().dice.between(0, PATIENCE_MS_MAX));
        trace::event("net", format_args!("{} stalls, {patience:?}", self.route.number));
        let given_up_at = Instant::now() + patience;
        while Instant::now() < given_up_at {
            rt::sleep(RETRANSMIT).await;
            if !self.network.is_cut(from, to) {
                return true;
            }
        }
        false
    }

    /// The receiver's side: its service answers.
    async fn serve(
        self,
        services: Services,
        received: mpsc::Receiver<Result<Bytes, Status>>,
        answered: mpsc::Sender<Timed>,
    ) {
        let path = self.route.path;
        let replies = match services.stream(path, messages(received)).await {
            Ok(replies) => replies,
            Err(status) => futures_util::stream::iter([Err(status)]).boxed(),
        };
        let (network, who) = (self.network.clone(), self.route.from.clone());
        let is_append = path.ends_with("/StreamAppend");
        let replies = replies.inspect(move |reply| {
            if let Ok(reply) = reply
                && is_append
            {
                network.judge_append(&who, reply);
            }
        });
        self.send(replies.boxed(), answered, None).await;
    }

    fn note(&self, sign: &str, message: &Result<Bytes, Status>) {
        let Route { from, to, number, .. } = &self.route;
        match message {
            Ok(body) => {
                let (size, hash) = (body.len(), trace::hash(body));
                trace::event(from, format_args!("{sign} {to} {number} {size} {hash:016x}"));
            }
            Err(status) => {
                trace::event(from, format_args!("{sign} {to} {number} {:?}", status.code()));
            }
        }
    }
}

/// One machine's access to the network.
#[derive(Clone)]
pub(crate) struct SimTransport {
    network: Network,
    from: String,
}

impl SimTransport {
    fn route(&self, to: &str, path: &'static str) -> Route {
        let number = self.network.number();
        let receiver = self.network.endpoint(to).map_or(0, |endpoint| endpoint.incarnation);
        let in_faults = !self.network.is_whole();
        Route { from: self.from.clone(), to: to.to_owned(), path, number, receiver, in_faults }
    }
}

impl Transport for SimTransport {
    fn unary(
        &self,
        to: &str,
        path: &'static str,
        _lane: Lane,
        body: Bytes,
        timeout: Duration,
    ) -> BoxFuture<'static, Result<Bytes, Status>> {
        let (network, route) = (self.network.clone(), self.route(to, path));
        async move {
            match rt::timeout(timeout, network.call(route, body)).await {
                Ok(result) => result,
                Err(_) => {
                    Err(Status::deadline_exceeded(format!("{path}: no reply in {timeout:?}")))
                }
            }
        }
        .boxed()
    }

    fn stream(
        &self,
        to: &str,
        path: &'static str,
        _lane: Lane,
        input: BoxStream<'static, Bytes>,
    ) -> BoxFuture<'static, Result<ReplyStream, Status>> {
        let (network, route) = (self.network.clone(), self.route(to, path));
        async move { network.open(route, input.map(Ok).boxed()).await }.boxed()
    }
}
