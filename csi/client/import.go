package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/cleatproject/cleat/internal/durable"
	"github.com/cleatproject/cleat/internal/store"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// database is the bbolt file of releases before 0.2.
const database = "client.db"

// Records of that database; other keys are unchanged.
type (
	oldVolume struct {
		volumeRecord
		State      string            `json:"phase"`
		Requested  volume.SizeRange  `json:"size"`
		Size       int64             `json:"capacity"`
		Mutable    map[string]string `json:"mutable"`
		Context    map[string]string `json:"context"`
		Attachment *attachment       `json:"attachment"`
	}
	oldSnapshot struct {
		snapshotRecord
		State  string `json:"phase"`
		Source string `json:"source"`
		Size   int64  `json:"size"`
	}
	oldGroup struct {
		groupRecord
		State   string        `json:"phase"`
		Members []oldSnapshot `json:"members"`
	}
)

// importDatabase imports and then renames an older release's database. An
// interrupted import is repeated.
func (s state) importDatabase(ctx context.Context) error {
	path := filepath.Join(s.dir, database)
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	unlock, err := s.lock(ctx, &attachment{Driver: database}) // any record: imports exclude each other
	if err != nil {
		return err
	}
	defer unlock()
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return nil // imported meanwhile
	}
	err = s.importFrom(ctx, path)
	if err == nil {
		err = errors.Join(os.Rename(path, path+".migrated"), durable.SyncDir(s.dir))
	}
	if err != nil {
		return fmt.Errorf("import the state of an older release: %w", err)
	}
	return nil
}

func (s state) importFrom(ctx context.Context, path string) error {
	for {
		db, err := store.Open(ctx, path, store.Options{Role: "client", Version: 1, ReadOnly: true})
		if errors.Is(err, store.ErrHeld) && ctx.Err() == nil {
			continue // in use by the older release; Open has waited
		}
		if err != nil {
			return err
		}
		err = db.View(ctx, func(tx *store.Tx) error {
			return errors.Join(importAll(tx, "volumes", s.importVolume), importAll(tx, "snapshots", s.importSnapshot), importAll(tx, "groups", s.importGroup))
		})
		return errors.Join(err, db.Close())
	}
}

func importAll[R any](tx *store.Tx, bucket string, importOne func(R) error) error {
	for e, err := range (store.Bucket[R]{Name: bucket}).Range(tx, "") {
		if err == nil {
			err = importOne(e.Value)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s state) importVolume(old oldVolume) error {
	if a := old.Attachment; a != nil {
		a.Driver, a.Volume, a.Context = old.Driver, old.ID, old.Context
		if err := s.put(a); err != nil {
			return err
		}
	}
	n := old.volumeRecord
	n.State, n.Requested, n.Size, n.Mutable, n.Context = old.State, old.Requested, old.Size, old.Mutable, old.Context
	if n.State == StateForeign {
		n.Name = cmp.Or(n.Context[access.KeyName], n.Name)
		if n.Grow == 0 {
			return nil
		}
	}
	return s.put(&n)
}

func (old oldSnapshot) record() *snapshotRecord {
	n := old.snapshotRecord
	n.State, n.Source, n.Size = old.State, old.Source, old.Size
	return &n
}

func (s state) importSnapshot(old oldSnapshot) error { return s.put(old.record()) }

func (s state) importGroup(old oldGroup) error {
	n := old.groupRecord
	n.State = old.State
	for _, m := range old.Members {
		n.Snapshots = append(n.Snapshots, m.record().Snapshot)
	}
	return s.put(&n)
}
