//go:build ceph

package ceph

import (
	"cmp"
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/ceph/go-ceph/cephfs"

	"github.com/cleatproject/cleat/engine/ceph/blocklist"
	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/backoff"
	"github.com/cleatproject/cleat/volume"
	"github.com/cleatproject/cleat/volume/access"
)

// sessions lists the sessions of all active metadata servers of the file system.
func (e *FS) sessions() (all []fsSession, err error) {
	err = e.mount.use(func(i *cephfs.MountInfo) error {
		all, err = e.sessionsBy(i)
		return err
	})
	return all, err
}

func (e *FS) sessionsBy(i *cephfs.MountInfo) (all []fsSession, err error) {
	servers, err := e.servers()
	if err != nil {
		return nil, err
	}
	for _, server := range servers {
		out, err := server.command(i, "session ls")
		if err != nil {
			return nil, err
		}
		list, err := parseSessions(out, server)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}

func (e *FS) servers() ([]mdsServer, error) {
	out, status, err := e.rados.MonCommand([]byte(`{"prefix":"fs dump","format":"json"}`))
	if err != nil {
		return nil, commandError(err, status, "list the metadata servers")
	}
	return parseServers(out, e.name)
}

// command runs a command of the metadata server.
func (s mdsServer) command(i *cephfs.MountInfo, prefix string) ([]byte, error) {
	out, status, err := i.MdsCommand(s.Name, [][]byte{fmt.Appendf(nil, `{"prefix":%q,"format":"json"}`, prefix)})
	if is(err, syscall.EACCES, syscall.EPERM) {
		return nil, errs.Errorf(errs.Denied, "%s of mds.%s: %w: the Ceph user of the controller needs the capability mds 'allow *'", prefix, s.Name, plain(err))
	}
	return out, commandError(err, status, "%s of mds.%s", prefix, s.Name)
}

// waitForMap waits until all metadata servers have the OSD map that the monitors
// have now: with an older one they still let a fenced client in.
func (e *FS) waitForMap(ctx context.Context) error {
	out, status, err := e.rados.MonCommand([]byte(`{"prefix":"osd stat","format":"json"}`))
	if err != nil {
		return commandError(err, status, "read the epoch of the OSD map")
	}
	want, err := parseEpoch(out, "epoch")
	if err != nil {
		return err
	}
	for {
		late, err := e.lateServer(want)
		if err != nil || late == "" {
			return err
		}
		if backoff.Sleep(ctx, sessionInterval) != nil {
			return errs.Errorf(errs.Unavailable, "%s does not have OSD map %d yet, and can let fenced clients in: %w", late, want, ctx.Err())
		}
	}
}

// lateServer returns a metadata server with a map before an epoch; "" if there
// is no such server.
func (e *FS) lateServer(epoch uint64) (late string, err error) {
	err = e.mount.use(func(i *cephfs.MountInfo) error {
		late = ""
		servers, err := e.servers()
		for _, s := range servers {
			out, err := s.command(i, "status")
			if err != nil {
				return err
			}
			have, err := parseEpoch(out, "osdmap_epoch")
			if err != nil {
				return err
			}
			if have < epoch {
				late = "mds." + s.Name
			}
		}
		return err
	})
	return late, err
}

// recordMount records the client instance of a new mount, for the next
// controller: while it is not fenced, the metadata server waits a minute for
// what a killed one has cached, and so do the commands of Ceph's manager.
// libcephfs does not report the instance, which is the latest with this root.
func (e *FS) recordMount(i *cephfs.MountInfo) {
	all, err := e.sessionsBy(i)
	own := slices.DeleteFunc(all, func(s fsSession) bool { return s.Root != e.root || s.User != e.user })
	if err == nil && len(own) > 0 {
		last := slices.MaxFunc(own, func(a, b fsSession) int { return cmp.Compare(a.Client.Client, b.Client.Client) })
		err = e.recordInstance(last.Instance)
	}
	if err != nil {
		e.logger.Warn("if this controller is killed, calls of the next one can wait for a minute: its mount of the subvolume group is not recorded", "err", err)
	}
}

// sessionCache spares one list for each volume: calls that wait for a list share
// the next one.
type sessionCache struct {
	mu   sync.Mutex
	last time.Time // when the list was begun
	all  []fsSession
}

// list returns a list that was begun after the call.
func (c *sessionCache) list(e *FS) ([]fsSession, error) {
	called := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last.After(called) {
		return c.all, nil
	}
	begun := time.Now()
	all, err := e.sessions()
	if err == nil {
		c.last, c.all = begun, all
	}
	return all, err
}

// Watchers returns the clients that have a volume mounted. NotFound: the volume
// does not exist.
func (e *FS) Watchers(ctx context.Context, id volume.ID) ([]blocklist.Watcher, error) {
	v, err := e.Get(ctx, id)
	if err != nil {
		return nil, err
	}
	return call(ctx, e.Connection, "list the users of volume "+errs.Quote(string(id)), func() (users []blocklist.Watcher, err error) {
		all, err := e.clients.list(e)
		// Kernels mount the directory above a snapshot.
		root, _, _ := strings.Cut(e.pathOf(v), "/.snap/")
		for _, s := range all {
			if s.Root == root {
				users = append(users, s.Client)
			}
		}
		return users, err
	})
}

func (e *FS) pathOf(v volume.Volume) string { return v.Locator.(access.CephFS).Path }

// FSFencer is a blocklist.Fencer with the sessions of the metadata servers as
// evidence. These end the session of a client when they have the map with its
// entry; until then it can change directories.
type FSFencer struct {
	*blocklist.Fencer
	fs *FS
}

// NewFSFencer returns a FSFencer.
func NewFSFencer(fs *FS, f *blocklist.Fencer) *FSFencer { return &FSFencer{Fencer: f, fs: fs} }

// Sessions implements volume.Fencer.
func (f *FSFencer) Sessions(ctx context.Context, blocks []netip.Prefix) ([]volume.Session, error) {
	return call(ctx, f.fs.Connection, "list the sessions of fenced clients", func() (found []volume.Session, err error) {
		if err := f.fs.waitForMap(ctx); err != nil {
			return nil, err
		}
		all, err := f.fs.sessions()
		for _, s := range all {
			if slices.ContainsFunc(blocks, func(b netip.Prefix) bool { return b.Contains(s.Client.Addr) }) {
				found = append(found, s.session())
			}
		}
		return found, err
	})
}

const sessionInterval = 50 * time.Millisecond

// End implements volume.Fencer. Evicting a session by a command would replace
// its entry on the blocklist by one of an hour, so it waits for the metadata
// servers.
func (f *FSFencer) End(ctx context.Context, sessions []volume.Session) error {
	for {
		left, err := f.left(ctx, sessions)
		if err != nil || len(left) == 0 {
			return err
		}
		if backoff.Sleep(ctx, sessionInterval) != nil {
			return errs.Errorf(errs.Unavailable, "%d sessions of fenced clients have not ended, such as that of %v at %s: %w", len(left), left[0].Client, left[0].Holder, ctx.Err())
		}
	}
}

// left returns those sessions that have not ended.
func (f *FSFencer) left(ctx context.Context, sessions []volume.Session) ([]volume.Session, error) {
	return call(ctx, f.fs.Connection, "list the sessions of fenced clients", func() ([]volume.Session, error) {
		all, err := f.fs.sessions()
		return slices.DeleteFunc(slices.Clone(sessions), func(s volume.Session) bool {
			return !slices.ContainsFunc(all, func(o fsSession) bool { return o.session().ID == s.ID })
		}), err
	})
}
