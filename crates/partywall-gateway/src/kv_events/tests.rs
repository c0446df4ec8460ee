mod decoding;
mod following;
mod indexing;
