//! What must happen sometimes. A run of many seeds in which one of these never happened has tested less than it says.

macro_rules! events {
    ($($(#[doc = $doc:literal])* $name:ident => $text:literal,)*) => {
        /// Something worth having happened.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Event {
            $($(#[doc = $doc])* $name,)*
        }

        impl Event {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];

            /// In words.
            pub const fn text(self) -> &'static str {
                match self {
                    $(Self::$name => $text,)*
                }
            }
        }
    };
}
events! {
    /// An entry with plans was proposed by a leader that then lost its leadership.
    LeaderChangedInFlight => "leader changed while a plan was in flight",
    /// An old leader's entry survived an election.
    SurvivedElection => "an entry of the old leader was committed by the new one",
    /// An old leader's entry did not.
    LostAtElection => "an entry of the old leader was lost",
    /// A leader that was deposed went on proposing.
    DeposedActed => "a deposed leader proposed something",
    /// The epoch in the entry was the last line of defence.
    StaleEpoch => "a command of an old leadership came into a new term and was refused",
    /// A new leadership ended before its barrier.
    ElectedTwice => "a leader was deposed before its services ran",
    /// A periodic job was launched.
    Launched => "a periodic job was launched, or passed for an overlap",
    /// Due times passed without a launch.
    LaunchesMissed => "due times of a periodic job passed without a launch",
    /// A child was still alive.
    LaunchOverlapped => "a periodic job was due while a child of it was alive",
    /// A launch came too late, or twice.
    LaunchRefused => "a launch of a periodic job was refused",
    /// Somebody forced one.
    LaunchForced => "a periodic job was forced",
    /// A wall clock jumped by an hour.
    ClockJumped => "a wall clock jumped by an hour",
    /// A server restarted, and knew no log time any more.
    TimeForgotten => "a server restarted and knew no log time",
    /// A leader's log time went on from what a server knew.
    TimeRanThrough => "log time went on from what a server knew that ran through",
    /// A leader's log time went on from the clocks.
    TimeOfClocks => "log time went on from the wall clocks",
    /// An outcome was not learned although the entry was committed.
    CommittedWithoutReply => "an entry was committed without a reply",
    /// A queued plan was flushed.
    QueueFlushed => "a queued plan was flushed",
    /// `apply` dropped a part of a plan.
    PartialCommit => "partial commit",
    /// The applier dropped a part of a plan before proposing it.
    PartialTrial => "the applier dropped part of a plan",
    /// The applier left nothing of a plan.
    EmptiedPlan => "the applier left nothing of a plan",
    /// A plan was refused as stale.
    StalePlan => "a stale plan was refused",
    /// An all-at-once plan lost everything.
    AllAtOnceLost => "an all-at-once plan was lost whole",
    /// A plan came from a snapshot newer than the leader's state.
    AheadOfLeader => "a plan came from a state ahead of the leader's",
    /// A lease was not acknowledged in time.
    LeaseExpired => "a lease ran out",
    /// A lease was released because its server lagged.
    LeaseReleased => "a lease was released for lag",
    /// An evaluation reached the delivery limit and failed.
    DeliveryLimit => "nack after the delivery limit: failed with a follow-up",
    /// An acknowledgement or plan with an old token or epoch was refused.
    StaleToken => "an old token or epoch was refused",
    /// A message was delivered twice.
    Duplicated => "a worker's message came twice",
    /// A superseded evaluation was canceled.
    Superseded => "a superseded evaluation was canceled",
    /// A blocked evaluation was woken.
    Woken => "a blocked evaluation was woken",
    /// An evaluation gave up after too many attempts.
    Exhausted => "an evaluation ran out of attempts",
    /// A node missed its heartbeat.
    NodeDown => "a node missed its heartbeat",
    /// A node that was down came back.
    NodeReturned => "a node came back",
    /// An agent lost its state.
    AgentReborn => "an agent lost its state",
    /// A node did not become ready in its time.
    NodeSuspended => "a node was suspended because it did not become ready",
    /// A check of an agent failed.
    CheckFailed => "an agent's check failed",
    /// A check of an agent asked for a person.
    CheckFatal => "an agent's check asked for a person",
    /// A report of a check came when a newer one was known.
    CheckIgnored => "an old report of a check was ignored",
    /// A node got a strike.
    Strike => "a node got a strike",
    /// Failures of one node came together.
    FailuresTogether => "several failures of a node came in one report",
    /// A strike suspended nobody, for others were suspended.
    StrikeWithoutSuspension => "a strike did not suspend its node: others were suspended",
    /// Nodes were suspended for each reason.
    SuspendedUnhealthy => "a node was suspended as unhealthy",
    /// By a strike.
    SuspendedFlaky => "a node was suspended as flaky",
    /// By a check.
    SuspendedFatal => "a node was suspended as fatal",
    /// By a person.
    SuspendedByOperator => "an operator suspended a node",
    /// The time of a suspension was over.
    SuspensionOver => "a suspension ended with its time",
    /// An operator ended one.
    Unsuspended => "an operator ended a suspension",
    /// The end of a suspension cleared what the node last ran.
    AffinityCleared => "the end of a suspension cleared an affinity key",
    /// A node that an operator took offline was reaped.
    OfflineReaped => "a node was reaped while it was offline",
    /// An operator took a draining node offline.
    OfflineDraining => "an operator took a draining node offline",
    /// A mass loss began.
    MassLoss => "a mass loss began",
    /// The servers saw that it was over.
    MassLossOver => "the servers ended a mass loss",
    /// An operator said that the nodes are lost.
    MassLossConfirmed => "an operator confirmed a mass loss",
    /// A node came back although it was due to be reaped, for a mass loss kept it.
    MassLossKept => "a node came back that a mass loss had kept from being reaped",
    /// A node was reaped.
    NodeReaped => "a node was reaped",
    /// A drain ended with an empty node.
    DrainCompleted => "a drain was completed",
    /// The drainer flagged allocations.
    Migrated => "allocations were marked for migration",
    /// Leader services started over from the state.
    EffectsMissed => "effects were missed and everything was derived anew",
    /// A client's retry was answered from its session.
    Retried => "a retry was answered from its session",
    /// A failed instance was rescheduled later.
    Rescheduled => "a failed allocation waits for its reschedule",
    /// A child waited until fewer of its parent's are alive.
    ChildWaited => "a child waited for max_running",
    /// It was let in.
    ChildLetIn => "a child that waited was let in",
    /// A child that was over was run again.
    ChildRevived => "a child that was over came to life again",
    /// A token of a dispatch came again.
    DispatchedAgain => "a dispatch came again under its token",
    /// A deployment of a version began.
    DeploymentBegun => "a deployment began",
    /// Canaries were promoted.
    DeploymentPromoted => "canaries were promoted",
    /// A version was rolled out.
    DeploymentSuccessful => "a deployment was successful",
    /// A version was not.
    DeploymentFailed => "a deployment failed",
    /// A version made no progress.
    DeploymentExpired => "a deployment failed at its deadline",
    /// A job went back to a stable version.
    DeploymentReverted => "a job was taken back to a stable version",
    /// Something was forgotten.
    Collected => "garbage was collected",
    /// The cluster worked undisturbed.
    Calm => "the cluster was left alone for a while",
    /// Many minutes passed in which hardly anything happened.
    Stretch => "the cluster was left alone for many minutes",
    /// A service's proposal did not come into the log.
    ProposalRefused => "a proposal of a service was refused",
    /// The applier stood still.
    ApplierStalled => "the applier stood still",
    /// Nothing was committed for a while.
    LogStalled => "the log stood still",
    /// The queue of plans was full.
    PlanQueueFull => "a plan found no room in the queue",
    /// A server applied nothing for a while.
    ApplyStalled => "a server applied nothing for a while",
    /// A worker was not told that its server had applied what it waited for.
    WakeUpLost => "the wake-up of a worker was lost",
    /// An operator set what the workers of a server take.
    WorkersOrdered => "workers were told to take other kinds of evaluations, or none",
    /// A worker was gone with its leases.
    WorkerDied => "a worker died with a lease",
    /// A scheduling pass took long.
    SlowPass => "a scheduling pass took long",
    /// A stopped task took its time.
    SlowStop => "a task took its time to stop",
    /// An allocation was pending for a while.
    SlowStart => "a task took its time to start",
    /// A task failed and was started again on its node.
    TaskRestarted => "a task was restarted while its allocation ran",
    /// Instances of a job failed within seconds of each other.
    FailedTogether => "instances of a job failed together",
    /// Failed instances waited for their replacement, and somebody wanted something of their job.
    FailedLookedAfter => "a job was looked after while its failed instances waited",
    /// The evaluation that was to replace failed instances came to nothing.
    RescheduleSuperseded => "a failed allocation's evaluation was superseded by another one",
    /// An entry held reports of several agents.
    ReportsTogether => "several agents' reports stood in one entry",
    /// The broker gave out nothing because an operator said so.
    BrokerPaused => "the broker was paused",
    /// A namespace or a node pool went.
    PlaceDeleted => "a namespace or a node pool was deleted",
    /// A namespace or a node pool was in use and stayed.
    PlaceInUse => "a namespace or a node pool in use was not deleted",
    /// A job came to where it cannot be.
    PlaceMissing => "a job came into a namespace or a node pool that is gone",
    /// A stopped job came back as it was.
    StoppedJobAgain => "a stopped job was registered again as it was",
    /// A job was evaluated while a step of its update waited.
    UpdateHurried => "a job was evaluated while a step of its update waited",
    /// A job came with several groups.
    SeveralGroups => "a job of several groups was registered",
    /// An intent was taken.
    IntentTaken => "an instance was asked for",
    /// A machine's agent registered as its instance.
    InstanceBound => "an instance was bound to its node",
    /// An operator held an instance.
    InstanceHeld => "an instance was held",
    /// An instance idled out.
    InstanceIdle => "an idle instance was shut down",
    /// An instance drained.
    InstanceDrained => "a drained instance was shut down",
    /// There were more than the pool may have, or another type was waited for.
    PoolShrunk => "a pool was shrunk",
    /// A create did not succeed in time.
    InstanceExpired => "an intent ran out",
    /// An agent did not register, or its machine broke.
    BootFailed => "an instance did not boot",
    /// A node was away for too long.
    ProbeFailed => "an instance whose node was away was shut down",
    /// An operator ended an instance.
    InstanceEnded => "an operator shut an instance down",
    /// A machine that no intent stands for came to light.
    StrayFound => "a machine without a row was found",
    /// A list lacked an instance.
    InstanceMissing => "a list lacked an instance",
    /// Two lists lacked an instance that was gone.
    InstanceDisappeared => "an instance was gone by itself",
    /// A job stayed blocked although a machine came.
    JobUnhelped => "a job was not helped by a machine that came",
    /// A provider refused creates for a while.
    PoolLimited => "a provider refused creates for a while",
    /// A call was refused.
    CallRefused => "a call to a provider was refused",
    /// A create made a second machine for its key.
    KeyIgnored => "a provider ignored a key",
    /// A machine got the id of one that is gone.
    IdReused => "a provider used an id again",
    /// A machine came without tags.
    TagsLost => "a machine lost its tags",
    /// A list lacked what was there.
    ListHid => "a list hid a machine",
    /// A list had what was not there.
    ListInvented => "a list invented a machine",
    /// A destroy was answered before it was done.
    DestroyedLater => "a destroy was to be done later",
    /// A machine was made after its caller had given up.
    MadeLate => "a machine was made after its deadline",
    /// A call was carried out and its answer was lost.
    AnswerLost => "the answer of a provider was lost",
    /// A leader that was deposed went on calling.
    DeposedCalled => "a deposed leader called a provider",
    /// A server crashed with a call under way.
    CallerCrashed => "a server crashed with a call under way",
    /// What came of an old leader's call went to the next one.
    LateAnswer => "the answer to a deposed leader was proposed to the next one",
    /// A provider took a machine back.
    Preempted => "a provider took a machine back",
    /// A machine's readiness check said no.
    MachineUnready => "the readiness check of a machine said no",
    /// A tag of a machine came after its machine.
    TagsCameLate => "a tag of a machine came late",
    /// A job came that runs on each node of the pool.
    SystemJobOfPool => "a system job of the pool was registered",
    /// The leader changed while a type of the pool paused.
    LeftWithFailures => "a leader went while a type paused for its failed boots",
    /// A pool made one machine at a time.
    PoolProtected => "a pool was protected",
    /// A pool had made as many machines as an hour may have.
    HourSpent => "a pool had made all that an hour may have",
    /// A word of a source of requirements was taken.
    WordTaken => "a source of requirements was heard",
    /// An older word came late.
    OldWord => "an older word of a source of requirements was refused",
    /// A source did not speak in its time.
    SourceSilent => "a source of requirements fell silent",
    /// A source began a new epoch.
    SourceRestarted => "a source of requirements started anew",
    /// A source began again with an epoch below its last one.
    SourceFellBack => "a source of requirements started anew in an older epoch",
    /// A group did without a member.
    MemberDrained => "a member of a capacity group was drained",
    /// A group needed it again.
    MemberTakenBack => "a drained member was taken back",
    /// Its drain was over.
    MemberReleased => "a drained member was shut down",
    /// The leader that decided was gone before the member was asked for.
    DecisionInherited => "a member was asked for on the decision of an earlier leader",
    /// A placement took the room of what was of lower priority.
    Evicted => "an allocation was evicted",
    /// A job that lost something to another one took the room of a third.
    EvictedInTurn => "a job that had lost an allocation evicted another one",
    /// What a placement was to evict had changed meanwhile, or was never to go.
    NotPreemptible => "a placement was dropped because of what it was to evict",
    /// A follower scheduled on a state behind the leader's.
    FollowerLagged => "a follower scheduled behind the leader",
}

/// How often each happened.
#[derive(Clone, Debug)]
pub struct Coverage(Vec<u64>);

impl Default for Coverage {
    fn default() -> Self {
        Self(vec![0; Event::ALL.len()])
    }
}

impl Coverage {
    /// It happened.
    pub fn count(&mut self, event: Event) {
        self.0[event as usize] += 1;
    }

    /// How often it happened.
    pub fn of(&self, event: Event) -> u64 {
        self.0[event as usize]
    }

    /// Adds another run's.
    pub fn add(&mut self, other: &Self) {
        for (sum, more) in self.0.iter_mut().zip(&other.0) {
            *sum += more;
        }
    }

    /// What never happened.
    pub fn missing(&self) -> Vec<Event> {
        Event::ALL.iter().copied().filter(|event| self.of(*event) == 0).collect()
    }
}
