package demo

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"
)

const journalBlock = 16 << 10

// journal appends blocks to a file, each durable before the next, and measures
// the slowest.
type journal struct {
	path   string
	blocks atomic.Int64
	stop   context.CancelFunc
	wait   sync.WaitGroup

	// After wait:
	longest time.Duration
	hash    hash.Hash
}

// startJournal starts the writer; fail is told when it meets an error.
func startJournal(ctx context.Context, fail context.CancelCauseFunc, dir string) (*journal, error) {
	j := &journal{path: filepath.Join(dir, "journal"), hash: sha256.New()}
	f, err := os.Create(j.path)
	if err != nil {
		return nil, err
	}
	ctx, j.stop = context.WithCancel(ctx)
	j.wait.Go(func() {
		if err := errors.Join(j.write(ctx, f), f.Close()); err != nil {
			fail(fmt.Errorf("the writer on the mounted volume met an error: %w", err))
		}
	})
	return j, nil
}

func (j *journal) write(ctx context.Context, f *os.File) error {
	source, block := random(99), make([]byte, journalBlock)
	for ctx.Err() == nil {
		if _, err := io.ReadFull(source, block); err != nil {
			return err
		}
		took, err := timed(func() error {
			_, err := f.Write(block)
			return errors.Join(err, f.Sync())
		})
		if err != nil {
			return err
		}
		j.longest = max(j.longest, took)
		j.hash.Write(block)
		j.blocks.Add(1)
	}
	return nil
}

// end stops the writer.
func (j *journal) end() {
	j.stop()
	j.wait.Wait()
}

// written is what the file must hold, after end.
func (j *journal) written() sum {
	s := sum{size: j.blocks.Load() * journalBlock}
	j.hash.Sum(s.hash[:0])
	return s
}
