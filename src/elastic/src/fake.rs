//! The fake cloud: provider `fake` of tests and of the simulation of the control plane.
//!
//! A table of machines that changes at each call. Whoever drives it decides when a call is carried
//! out, what goes wrong with it ([`Fault`]), and what becomes of the answer: a late answer, a lost
//! one and one to a leader that is gone are the driver's to play. It counts what it made and what
//! it ended, so that an oracle can hold the rows to it.

use std::collections::BTreeMap;

use fsm::{InstanceId, Text};

use crate::call::{
    Answer, Create, Description, Destroyed, ErrorClass, Listing, Machine, MachineState, Operation,
    ProviderError, Tags,
};

/// What goes wrong with one call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Fault {
    /// It is refused, and nothing is done.
    Refuses(ProviderError),
    /// A create makes a second machine although its key has one.
    IgnoresKey,
    /// A create gives its machine this id, which was another's that is gone.
    ReusesId(Text),
    /// A create forgets the tags of its machine.
    LosesTags,
    /// A list lacks this machine.
    Hides(Text),
    /// A list is empty.
    HidesAll,
    /// A list has this machine, which does not exist.
    Invents(Machine),
    /// A destroy is done and answers that it will be.
    SaysLater,
}

/// A machine of the fake cloud.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct FakeMachine {
    /// Numbers machines in the order in which they were made; no two share one.
    pub number: u64,
    /// As its provider describes it.
    pub described: Machine,
    /// What was asked for.
    pub create: Create,
    pub state: MachineState,
    /// Why it is like that.
    pub words: Text,
}

/// All machines of one scope.
#[derive(Clone, Debug)]
pub struct FakeCloud {
    scope: Text,
    machines: BTreeMap<Text, FakeMachine>,
    made: u64,
    ended: u64,
}

impl FakeCloud {
    /// One without machines.
    pub fn new(scope: &str) -> Self {
        Self { scope: scope.into(), machines: BTreeMap::new(), made: 0, ended: 0 }
    }

    /// Machines that there are, by id.
    pub fn machines(&self) -> impl Iterator<Item = &FakeMachine> {
        self.machines.values()
    }

    /// The machine of this id.
    pub fn machine(&self, provider_id: &str) -> Option<&FakeMachine> {
        self.machines.get(provider_id)
    }

    /// Machines made until now.
    pub fn made(&self) -> u64 {
        self.made
    }

    /// Machines that are gone, by destroy or by themselves.
    pub fn ended(&self) -> u64 {
        self.ended
    }

    /// A machine boots, is up or breaks.
    pub fn set_state(&mut self, provider_id: &str, state: MachineState, words: &str) {
        if let Some(machine) = self.machines.get_mut(provider_id) {
            (machine.state, machine.words) = (state, words.into());
        }
    }

    /// A tag of a machine that came without it comes at last; one that is there stays.
    pub fn tag(&mut self, provider_id: &str, name: &Text, value: &Text) {
        if let Some(machine) = self.machines.get_mut(provider_id) {
            let tags = &mut machine.described.tags;
            tags.entry(name.clone()).or_insert_with(|| value.clone());
        }
    }

    /// A machine goes, by a destroy or because its provider took it back. Whether it was there.
    pub fn end(&mut self, provider_id: &str) -> bool {
        let was = self.machines.remove(provider_id).is_some();
        self.ended += u64::from(was);
        was
    }

    /// Carries out a call, with what goes wrong.
    pub fn call(
        &mut self,
        operation: &Operation,
        faults: &[Fault],
    ) -> Result<Answer, ProviderError> {
        for fault in faults {
            if let Fault::Refuses(error) = fault {
                return Err(error.clone());
            }
        }
        match operation {
            Operation::Create(create) => Ok(Answer::Created(self.create(create, faults))),
            Operation::List => Ok(Answer::Listed(self.list(faults))),
            Operation::Destroy { provider_id, .. } => {
                let was = self.end(provider_id);
                let is_later = was && faults.contains(&Fault::SaysLater);
                Ok(Answer::Destroyed(if is_later { Destroyed::Asked } else { Destroyed::Gone }))
            }
            Operation::SetTags { provider_id, tags, .. } => self.set_tags(provider_id, tags),
            Operation::Describe { provider_id, .. } => {
                Ok(Answer::Described(self.describe(provider_id)))
            }
        }
    }

    fn create(&mut self, create: &Create, faults: &[Fault]) -> Machine {
        let known = self.machine_of(create.key).filter(|_| !faults.contains(&Fault::IgnoresKey));
        if let Some(known) = known {
            return known.described.clone();
        }
        let reused = faults.iter().find_map(|fault| {
            let Fault::ReusesId(id) = fault else { return None };
            (!self.machines.contains_key(id)).then(|| id.clone())
        });
        self.made += 1;
        let number = self.made;
        let loses_tags = faults.contains(&Fault::LosesTags);
        let described = Machine {
            provider_id: reused.unwrap_or_else(|| format!("i-{number}").into()),
            address: format!("10.0.0.{}:1", number % 250).into(),
            scope: self.scope.clone(),
            tags: if loses_tags { Tags::new() } else { create.tags.clone() },
        };
        let machine = FakeMachine {
            number,
            described: described.clone(),
            create: create.clone(),
            state: MachineState::Booting,
            words: "".into(),
        };
        self.machines.insert(described.provider_id.clone(), machine);
        described
    }

    /// The oldest machine that was made for an instance.
    pub fn machine_of(&self, key: InstanceId) -> Option<&FakeMachine> {
        let machines = self.machines.values().filter(|machine| machine.create.key == key);
        machines.min_by_key(|machine| machine.number)
    }

    fn list(&self, faults: &[Fault]) -> Listing {
        let hides_all = faults.contains(&Fault::HidesAll);
        let is_hidden = |id: &Text| hides_all || faults.contains(&Fault::Hides(id.clone()));
        let there = self.machines.values().map(|machine| &machine.described);
        let invented = faults.iter().filter_map(|fault| {
            let Fault::Invents(machine) = fault else { return None };
            Some(machine)
        });
        Listing {
            scope: self.scope.clone(),
            machines: there
                .filter(|machine| !is_hidden(&machine.provider_id))
                .chain(invented)
                .cloned()
                .collect(),
        }
    }

    fn set_tags(&mut self, provider_id: &str, tags: &Tags) -> Result<Answer, ProviderError> {
        let Some(machine) = self.machines.get_mut(provider_id) else {
            return Err(ProviderError::new(ErrorClass::Fatal, "there is no such machine"));
        };
        machine.described.tags = tags.clone();
        Ok(Answer::Tagged)
    }

    fn describe(&self, provider_id: &str) -> Description {
        match self.machines.get(provider_id) {
            Some(machine) => Description {
                state: machine.state,
                address: machine.described.address.clone(),
                words: machine.words.clone(),
            },
            None => Description {
                state: MachineState::Gone,
                address: "".into(),
                words: "there is no such machine".into(),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{call::TAG_INSTANCE, testing::kind};

    fn create(key: u8) -> Operation {
        let key = InstanceId([key; 16]);
        Operation::Create(Box::new(Create {
            key,
            token: [7; 16],
            pool: "p".into(),
            kind: kind("small"),
            tags: [(TAG_INSTANCE.into(), key.to_string().into())].into(),
        }))
    }

    fn made(cloud: &mut FakeCloud, key: u8, faults: &[Fault]) -> Machine {
        match cloud.call(&create(key), faults) {
            Ok(Answer::Created(machine)) => machine,
            other => panic!("{other:?}"),
        }
    }

    fn listed(cloud: &mut FakeCloud, faults: &[Fault]) -> Vec<Text> {
        match cloud.call(&Operation::List, faults) {
            Ok(Answer::Listed(list)) => {
                list.machines.into_iter().map(|machine| machine.provider_id).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    fn destroy(
        cloud: &mut FakeCloud,
        id: &Text,
        faults: &[Fault],
    ) -> Result<Answer, ProviderError> {
        let (instance, provider_id) = (InstanceId([1; 16]), id.clone());
        cloud.call(&Operation::Destroy { instance, provider_id }, faults)
    }

    #[test]
    fn a_key_makes_one_machine_unless_it_is_ignored() {
        let mut cloud = FakeCloud::new("zone");
        let first = made(&mut cloud, 1, &[]);
        assert_eq!(made(&mut cloud, 1, &[]), first);
        let second = made(&mut cloud, 1, &[Fault::IgnoresKey]);
        assert_ne!(second.provider_id, first.provider_id);
        assert_eq!(listed(&mut cloud, &[]), [first.provider_id, second.provider_id]);
        assert_eq!((cloud.made(), cloud.ended()), (2, 0));
    }

    #[test]
    fn lists_hide_and_invent_what_they_are_told_to() {
        let mut cloud = FakeCloud::new("zone");
        let first = made(&mut cloud, 1, &[]).provider_id;
        let second = made(&mut cloud, 2, &[Fault::LosesTags]);
        assert_eq!(second.tags, Tags::new());
        assert_eq!(listed(&mut cloud, &[Fault::Hides(first.clone())]), [second.provider_id]);
        assert_eq!(listed(&mut cloud, &[Fault::HidesAll]), [] as [Text; 0]);
        let ghost = Machine { provider_id: "ghost".into(), ..Machine::default() };
        assert!(listed(&mut cloud, &[Fault::Invents(ghost)]).contains(&"ghost".into()));
        assert!(listed(&mut cloud, &[]).contains(&first));
    }

    #[test]
    fn tags_that_come_late_are_those_that_are_lacking() {
        let mut cloud = FakeCloud::new("zone");
        let id = made(&mut cloud, 1, &[Fault::LosesTags]).provider_id;
        for (name, value) in [("a", "old"), ("a", "new"), ("b", "one")] {
            cloud.tag(&id, &name.into(), &value.into());
        }
        let tags = cloud.machine(&id).map(|one| one.described.tags.clone());
        let wanted: Tags = [("a".into(), "old".into()), ("b".into(), "one".into())].into();
        assert_eq!(tags, Some(wanted));
    }

    #[test]
    fn a_destroy_is_counted_once_and_its_id_can_be_used_again() {
        let mut cloud = FakeCloud::new("zone");
        let id = made(&mut cloud, 1, &[]).provider_id;
        let busy = ProviderError::new(ErrorClass::Transient, "busy");
        assert_eq!(destroy(&mut cloud, &id, &[Fault::Refuses(busy.clone())]), Err(busy));
        let later = destroy(&mut cloud, &id, &[Fault::SaysLater]);
        assert_eq!(later, Ok(Answer::Destroyed(Destroyed::Asked)));
        let again = destroy(&mut cloud, &id, &[]);
        assert_eq!(again, Ok(Answer::Destroyed(Destroyed::Gone)));
        let reused = made(&mut cloud, 2, &[Fault::ReusesId(id.clone())]);
        assert_eq!(reused.provider_id, id);
        let other = made(&mut cloud, 3, &[Fault::ReusesId(id.clone())]);
        assert_ne!(other.provider_id, id, "a machine has it");
        assert_eq!((cloud.made(), cloud.ended()), (3, 1));
    }
}
