package store

import (
	"context"

	"go.etcd.io/bbolt"
)

// Database runs transactions over the records of buckets.
type Database interface {
	// View calls fn with a consistent snapshot. fn must not call Update.
	View(ctx context.Context, fn func(tx *Tx) error) error
	// Update commits the changes of fn durably if it returns nil; otherwise
	// nothing is changed. fn must neither block nor call View or Update, and
	// can run several times: only its last result counts.
	Update(ctx context.Context, fn func(tx *Tx) error) error
	// Spare returns an error if space runs short. Callers check it before they
	// add records: what is left is for changes of others, and deletions.
	Spare(ctx context.Context) error
}

// Tx is a transaction, read-only in View. It is valid until the function
// returns.
type Tx struct {
	tables tables
	of     Database // of a View; nil in an Update
}

type joinKey struct{}

// Join returns a context in which View of the same database reads the snapshot of a
// View: two packages that share a database can so read what is of one moment.
func Join(ctx context.Context, tx *Tx) context.Context { return context.WithValue(ctx, joinKey{}, tx) }

// joined returns nil if the context has no snapshot of a database.
func joined(ctx context.Context, db Database) *Tx {
	if tx, _ := ctx.Value(joinKey{}).(*Tx); tx != nil && tx.of == db {
		return tx
	}
	return nil
}

// tables are the buckets of a transaction.
type tables interface {
	find(bucket string) table // nil: the bucket does not exist
	create(bucket string) (table, error)
	writable() bool
}

// table is one bucket. Get returns nil if the key does not exist.
type table interface {
	Get(key []byte) []byte
	Put(key, value []byte) error
	Delete(key []byte) error
	cursor() cursor
}

// cursor returns records by key; a nil key is the end. After a change of the
// table only Seek is defined.
type cursor interface {
	Seek(from []byte) (key, value []byte)
	Next() (key, value []byte)
}

func boltTx(tx *bbolt.Tx) *Tx { return &Tx{tables: boltTables{tx}} }

type boltTables struct{ tx *bbolt.Tx }

func (t boltTables) find(bucket string) table {
	if b := t.tx.Bucket([]byte(bucket)); b != nil {
		return boltTable{b}
	}
	return nil
}

func (t boltTables) create(bucket string) (table, error) {
	b, err := t.tx.CreateBucketIfNotExists([]byte(bucket))
	return boltTable{b}, err
}

func (t boltTables) writable() bool { return t.tx.Writable() }

type boltTable struct{ *bbolt.Bucket }

func (t boltTable) cursor() cursor { return t.Cursor() }
