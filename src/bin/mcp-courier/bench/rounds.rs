//! Sides that are measured in turn, so that what changes on the machine meanwhile meets all of them.

use std::pin::Pin;

use super::measures::Measures;
use super::row::{OURS, Row};
use crate::output::Failure;

type Running<'a> = Pin<Box<dyn Future<Output = Result<Measures, Failure>> + Send + 'a>>;

/// One side: what it is, and how one run of it goes.
pub struct Side<'a> {
    pub row: Row,
    run: Box<dyn Fn() -> Running<'a> + Send + Sync + 'a>,
    pub samples: Vec<Measures>,
}

impl<'a> Side<'a> {
    pub fn new<F>(row: Row, run: impl Fn() -> F + Send + Sync + 'a) -> Self
    where
        F: Future<Output = Result<Measures, Failure>> + Send + 'a,
    {
        Self { row, run: Box::new(move || Box::pin(run())), samples: Vec::new() }
    }
}

/// Runs each side once a round, in turn forwards and backwards.
pub async fn interleave(name: &str, rounds: u32, sides: &mut [Side<'_>]) -> Result<(), Failure> {
    for round in 0..rounds {
        eprintln!("{name}: round {} of {rounds}", round + 1);
        let mut order: Vec<usize> = (0..sides.len()).collect();
        if round % 2 == 1 {
            order.reverse();
        }
        for n in order {
            let side = &mut sides[n];
            let sample = (side.run)().await?;
            side.samples.push(sample);
        }
    }
    Ok(())
}

/// The rows of all sides. Those that are no baseline are held against the first one, if that is one.
pub fn rows(sides: &[Side<'_>]) -> Vec<Row> {
    let baseline = sides.first().filter(|side| side.row.system != OURS);
    let row = |side: &Side<'_>| {
        let row = side.row.clone().filled(&side.samples);
        match baseline {
            Some(raw) if row.system == OURS => row.against(&raw.row.system, &side.samples, &raw.samples),
            _ => row,
        }
    };
    sides.iter().map(row).collect()
}
