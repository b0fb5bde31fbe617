package file

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/linux/loop"
	"github.com/cleatproject/cleat/node"
)

// losses remembers of which devices a failed last flush was told. The kernel
// keeps nothing that it could not write, so there is nothing to wait for: who
// calls again knows, and has to get rid of a device on a disk that died.
type losses struct {
	mu   sync.Mutex
	told map[string]bool // by device and backing file
}

// tell reports whether the caller has to be told first.
func (l *losses) tell(device string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.told[device] {
		delete(l.told, device)
		return false
	}
	if l.told == nil {
		l.told = map[string]bool{}
	}
	l.told[device] = true
	return true
}

func (l *losses) forget(device string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.told, device)
}

// Detach implements node.Attacher. When the device's disk answers its last
// flush with an error, that is the error of the first call; the next detaches.
func (a *Attacher) Detach(ctx context.Context, t node.Target) error {
	devices, err := a.attached(ctx, t)
	if err != nil {
		return err
	}
	for _, d := range devices {
		name := d.Path + " " + formatBacking(d.Backing)
		err := loop.Flush(ctx, d)
		switch {
		case errors.Is(err, unix.EIO) && a.losses.tell(name):
			return fmt.Errorf("%w: data that was not written before is lost; the next call detaches the device all the same", err)
		case err != nil && !errors.Is(err, unix.EIO) && !errors.Is(err, loop.ErrGone):
			return err
		}
		if err := loop.Detach(ctx, d); err != nil {
			return err
		}
		a.losses.forget(name)
	}
	return nil
}
