package hostfs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/volume/access"
)

// lookup is net.Resolver.LookupNetIP.
type lookup func(ctx context.Context, network, host string) ([]netip.Addr, error)

// nfs is a directory of an NFS export.
type nfs struct {
	mounts   *Mounts
	at       access.NFS
	options  nfsOptions
	readOnly bool
}

func newNFS(m *Mounts, a access.NFS, readOnly bool) (nfs, error) {
	n := nfs{mounts: m, at: a}
	var err error
	if n.options, err = parseNFSOptions(a.Options); err != nil {
		return nfs{}, fmt.Errorf("%s: %w", nfsDevice(a), err)
	}
	n.readOnly = readOnly || n.options.readOnly
	if device := nfsDevice(a); len(device) > maxSource {
		return nfs{}, errs.Errorf(errs.Invalid, "NFS server and path have %d bytes in total, at most %d are allowed: %.64q...", len(device), maxSource, device)
	}
	return n, nil
}

// maxSource is the maximum length of a source for fsconfig(2).
const maxSource = 255

func nfsDevice(a access.NFS) string {
	host := a.Server
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	return host + ":" + path.Join(a.Share, a.SubDir)
}

func (n nfs) String() string {
	return fmt.Sprintf("NFS export %s (%s)", nfsDevice(n.at), modeOf(n.readOnly))
}

// shown compares server, path and read-only mode. Mounts of one export by two
// host names share a superblock, which shows the first name; then addresses are
// compared.
func (n nfs) shown(ctx context.Context, e mount.Entry, _ []mount.Entry) (bool, error) {
	host, dir, _ := strings.Cut(e.Source, ":/")
	_, want, _ := strings.Cut(nfsDevice(n.at), ":/")
	if e.FSType != "nfs" && e.FSType != "nfs4" || dir != want || e.ReadOnly() != n.readOnly {
		return false, nil
	}
	if strings.Trim(host, "[]") == n.at.Server {
		return true, nil
	}
	i := slices.IndexFunc(e.SuperOptions, func(o string) bool { return strings.HasPrefix(o, "addr=") })
	if i < 0 {
		return false, nil
	}
	shown, err := netip.ParseAddr(strings.TrimPrefix(e.SuperOptions[i], "addr="))
	if err != nil {
		return false, nil
	}
	addrs, err := n.addresses(ctx)
	return slices.Contains(addrs, shown), err
}

const maxAddrs = 4

func (n nfs) addresses(ctx context.Context) ([]netip.Addr, error) {
	if a, err := netip.ParseAddr(n.at.Server); err == nil {
		return []netip.Addr{a.Unmap()}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, n.mounts.config.Deadline)
	defer cancel()
	addrs, err := n.mounts.lookup(ctx, "ip", n.at.Server)
	if err != nil {
		return nil, errs.Errorf(errs.Unavailable, "look up the NFS server: %w", err)
	}
	for i := range addrs {
		addrs[i] = addrs[i].Unmap()
	}
	return addrs[:min(len(addrs), maxAddrs)], nil
}

func (n nfs) mountAt(ctx context.Context, target string) error {
	addrs, err := n.addresses(ctx)
	if err != nil {
		return fmt.Errorf("%s: %w", n, err)
	}
	err = n.mounts.run(ctx, helperRequest{Target: target, NFS: &nfsMount{
		Source: nfsDevice(n.at), Addrs: addrs, Versions: n.options.versions, Options: n.options.kernel, ReadOnly: n.readOnly,
	}}, n.mounts.config.Deadline)
	return n.explain(err)
}

func (n nfs) explain(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errNoAnswer), errors.Is(err, unix.ETIMEDOUT):
		return errs.Errorf(errs.Unavailable, "%s: %w: check that the server is up and its NFS port reachable from this machine", n, err)
	case isUnreachable(err):
		return errs.Errorf(errs.Unavailable, "%s: %w: the server is unreachable, or does not serve NFS", n, err)
	case errors.Is(err, unix.ENOENT):
		return errs.Errorf(errs.Precondition, "%s: %w: the server does not have this directory, or does not export it to this machine", n, err)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return errs.Errorf(errs.Precondition, "%s: %w: the server does not export this directory to this machine", n, err)
	case errors.Is(err, unix.EPROTONOSUPPORT):
		return errs.Errorf(errs.Precondition, "%s: %w: the server does not speak this version of NFS", n, err)
	}
	return fmt.Errorf("%s: %w", n, err)
}

func isUnreachable(err error) bool {
	return slices.ContainsFunc([]unix.Errno{unix.ECONNREFUSED, unix.ECONNRESET, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.EHOSTDOWN, unix.ETIMEDOUT},
		func(e unix.Errno) bool { return errors.Is(err, e) })
}

// nfsMount is the request to a helper.
type nfsMount struct {
	Source   string       `json:"source"`
	Addrs    []netip.Addr `json:"addrs"`
	Versions []string     `json:"versions"`
	Options  []string     `json:"options,omitempty"`
	ReadOnly bool         `json:"readOnly,omitempty"`
}

func (o nfsMount) execute(ctx context.Context, target string, say func(string)) error {
	hasStatd := func() (bool, error) { return statdRuns(ctx, portmapAddr) }
	return o.try(func(addr netip.Addr, version string) error {
		if err := checkLocks(version, o.Options, hasStatd); err != nil {
			return err
		}
		err := mount.Mount(ctx, mount.Spec{
			Source: o.Source, Target: target, FSType: "nfs", ReadOnly: o.ReadOnly,
			Options: append(slices.Clone(o.Options), "vers="+version, "addr="+addr.String()),
		})
		if err == nil && version != o.Versions[0] {
			say("NFS export " + o.Source + " is mounted with version " + version + ": the server refused newer versions")
		}
		return err
	})
}

// try tries all versions at each address. It returns the errors of the last
// one.
func (o nfsMount) try(mountOne func(addr netip.Addr, version string) error) error {
	var failed versionErrors
	for _, addr := range o.Addrs {
		failed = failed[:0]
		for i := 0; i < len(o.Versions); i++ {
			err := mountOne(addr, o.Versions[i])
			if err == nil {
				return nil
			}
			failed = append(failed, versionError{o.Versions[i], err})
			if i = o.next(i, err); i < 0 {
				break
			}
		}
		if !isUnreachable(failed[len(failed)-1].err) {
			break
		}
	}
	if len(failed) == 0 {
		return errs.Errorf(errs.Unavailable, "the host name of the NFS server has no address")
	}
	return failed.join()
}

// next returns the index before the next version to try, -1 to stop. Servers
// report an unknown version with various errors; ENOENT can mean that version 4
// has other paths.
func (o nfsMount) next(i int, err error) int {
	switch {
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL) && errs.KindOf(err) != errs.Invalid:
		return i
	case errors.Is(err, unix.ENOENT):
		if three := slices.Index(o.Versions, "3"); three > i {
			return three - 1
		}
	}
	return -1
}

type versionError struct {
	version string
	err     error
}

type versionErrors []versionError

// join puts the first error that is not about the version first.
func (all versionErrors) join() error {
	if len(all) == 1 {
		return all[0].err
	}
	best := max(0, slices.IndexFunc(all, func(v versionError) bool { return !errors.Is(v.err, unix.EPROTONOSUPPORT) }))
	others := make([]string, 0, len(all))
	for i, v := range all {
		if i != best {
			others = append(others, fmt.Sprintf("with version %s: %v", v.version, v.err))
		}
	}
	return fmt.Errorf("with version %s: %w (%s)", all[best].version, all[best].err, strings.Join(others, "; "))
}
