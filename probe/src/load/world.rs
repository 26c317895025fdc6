//! What all threads read, and which of them has which connections.

use std::ops::Range;

use anyhow::Result;

use crate::load::keys::Keys;
use crate::load::options::Options;
use crate::load::payload::Payloads;
use crate::load::secret::Secret;
use crate::load::source::Shares;

/// Which thread has which connections of a group, the same in each group: the instances follow each other in the
/// numbering, and the connections of each instance go round the threads, beginning with another one for each instance.
#[derive(Debug, Clone, Copy)]
pub struct Assignment {
    pub threads: u64,
    pub instances: u64,
    pub connections: u64,
}

impl Assignment {
    pub fn all(&self) -> u64 {
        self.instances * self.connections
    }

    fn thread(&self, instance: u64, connection: u64) -> u64 {
        (connection + instance) % self.threads
    }

    /// Numbers, among all, of the connections that a thread has to an instance.
    pub fn numbers(&self, thread: usize, instance: usize) -> Vec<u64> {
        let instance = instance as u64;
        let is_own = |connection: &u64| self.thread(instance, *connection) == thread as u64;
        (0..self.connections).filter(is_own).map(|connection| connection * self.instances + instance).collect()
    }

    /// How many connections to an instance the threads before this one have. The thread that has its first connection
    /// comes before all.
    pub fn before(&self, thread: usize, instance: usize) -> u64 {
        let turn = |thread: u64| (thread + self.threads - instance as u64 % self.threads) % self.threads;
        (0..self.connections)
            .filter(|connection| turn(self.thread(instance as u64, *connection)) < turn(thread as u64))
            .count() as u64
    }
}

/// What all threads read.
pub struct World {
    pub options: Options,
    pub assignment: Assignment,
    pub payloads: Payloads,
    pub shares: Shares,
    pub secret: Option<Secret>,
}

impl World {
    pub fn new(options: Options) -> Result<Self> {
        let assignment = Assignment {
            threads: options.cpus.len().max(1) as u64,
            instances: (options.server.len() / options.slices.groups as usize) as u64,
            connections: u64::from(options.connections),
        };
        let payloads = Payloads::new(&options.payload, options.seed);
        let keys = Keys::new(options.keys, options.popularity);
        let shares = Shares { keys, count: options.keys, sets: options.set_get.0, hits: options.hit_ratio };
        let secret = options.secret.as_deref().map(|path| Secret::read(path, options.protocol)).transpose()?;
        Ok(Self { options, assignment, payloads, shares, secret })
    }

    /// The group of a server, and its place in it.
    pub fn place(&self, server: usize) -> (usize, usize) {
        let each = self.assignment.instances as usize;
        (server / each, server % each)
    }

    /// The servers of a group.
    pub fn servers(&self, group: usize) -> Range<usize> {
        let each = self.assignment.instances as usize;
        group * each..(group + 1) * each
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_connection_has_one_thread_and_the_threads_share_each_instance() {
        for (threads, instances, connections) in [(1, 1, 1), (2, 1, 5), (2, 2, 1), (3, 2, 7), (4, 3, 2)] {
            let assignment = Assignment { threads, instances, connections };
            let mut all = Vec::new();
            for instance in 0..instances as usize {
                let own: Vec<_> = (0..threads as usize).map(|thread| assignment.numbers(thread, instance)).collect();
                let sizes = own.iter().map(Vec::len);
                assert!(sizes.clone().max().unwrap() - sizes.min().unwrap() <= 1, "{assignment:?}");
                let mut ranges: Vec<_> = own
                    .iter()
                    .enumerate()
                    .map(|(thread, own)| (assignment.before(thread, instance), own.len() as u64))
                    .collect();
                ranges.sort_unstable();
                let mut next = 0;
                for (before, count) in ranges.into_iter().filter(|range| range.1 > 0) {
                    assert_eq!(before, next, "{assignment:?}");
                    next += count;
                }
                assert_eq!(next, connections);
                all.extend(own.concat());
            }
            all.sort_unstable();
            assert_eq!(all, (0..assignment.all()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn one_connection_to_each_of_two_instances_keeps_two_threads_busy() {
        let assignment = Assignment { threads: 2, instances: 2, connections: 1 };
        assert_eq!((assignment.numbers(0, 0), assignment.numbers(1, 1)), (vec![0], vec![1]));
        assert_eq!((assignment.before(0, 0), assignment.before(1, 1)), (0, 0));
    }
}
