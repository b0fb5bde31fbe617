package local

import (
	"context"
	"errors"
	"os"

	"github.com/cleatproject/cleat/internal/poolfile"
	"github.com/cleatproject/cleat/internal/store"
)

// writeVolumeRecord writes the record of a complete file into its attributes,
// from which Rebuild makes a lost record again. Later changes of the volume, and
// its deletion, do not change them: a full pool can lack the space.
func writeVolumeRecord(f *os.File, r volumeRecord) error {
	requested := r.Requested
	r.State, r.Requested, r.PendingSettings, r.Copied = ready, nil, nil, 0
	return errors.Join(poolfile.WriteRecord(f, r), poolfile.WriteParameters(f, requested))
}

func writeSnapshotRecord(f *os.File, r snapshotRecord) error {
	r.State, r.Copied = ready, 0
	return poolfile.WriteRecord(f, r)
}

// addRecords writes the records of volumes and snapshots of earlier releases into
// their files. It ends at the first failure, as on a full pool, without an effect
// on the volumes. Nothing is synced: each start writes what is missing.
func (e *Engine) addRecords(ctx context.Context) {
	written := 0
	err := e.store.View(ctx, func(tx *store.Tx) error {
		for entry, err := range volumeBucket.Range(tx, "") {
			if err == nil && entry.Value.State == ready {
				err = e.addRecord(volumesDir+"/"+entry.Key, &written, func(f *os.File) error {
					return writeVolumeRecord(f, entry.Value)
				})
			}
			if err != nil {
				return err
			}
		}
		for entry, err := range snapshotBucket.Range(tx, "") {
			if err == nil && entry.Value.State == ready {
				err = e.addRecord(snapshotsDir+"/"+entry.Key, &written, func(f *os.File) error {
					return writeOldSnapshotRecord(tx, f, entry.Value)
				})
			}
			if err != nil {
				return err
			}
		}
		return nil
	})
	switch {
	case err != nil && ctx.Err() == nil:
		e.logger.Warn("writing records to files of an earlier release failed, will retry at the next start", "written", written, "err", err)
	case written > 0:
		e.logger.Info("records written to files of an earlier release", "written", written)
	}
}

// addRecord counts the files that get a record. What cannot be opened is left to
// the health of its volume.
func (e *Engine) addRecord(name string, written *int, write func(f *os.File) error) error {
	f, err := e.pool.openFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil
	}
	defer f.Close()
	found, err := poolfile.HasRecord(f)
	if err == nil && !found {
		if err = write(f); err == nil {
			*written++
		}
	}
	return err
}

// writeOldSnapshotRecord adds what records of earlier releases lack.
func writeOldSnapshotRecord(tx *store.Tx, f *os.File, r snapshotRecord) error {
	if r.Group != "" {
		g, _, err := groupBucket.Get(tx, string(r.Group))
		if err != nil {
			return err
		}
		r.Members = len(g.Snapshots)
	}
	return writeSnapshotRecord(f, r)
}
