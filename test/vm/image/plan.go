package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Source is where a package comes from.
type Source string

const (
	Stable    Source = "stable"    // the host's Debian release with updates
	Backports Source = "backports" // that release's backports
	Testing   Source = "testing"   // Debian testing; it has a kernel only
)

// suites returns apt's names of the optional sources.
func suites(codename string) map[Source]string {
	return map[Source]string{Backports: codename + "-backports", Testing: "testing"}
}

// fresh is how long package lists are used; retry is the delay after a failed
// update.
const (
	fresh = 24 * time.Hour
	retry = time.Hour
)

// plan pins the versions of the guests' packages. It is renewed daily, to
// follow Debian's security updates.
type plan struct {
	Made     time.Time
	Next     time.Time // time of the next update
	Kernels  map[Source][]Package
	Emulator []Package // QEMU of the backports
	Tools    []Package // with all dependencies
	Asked    []string  // value of toolPackages that Tools belong to
	// Missing has the reason if an optional source is not available.
	Missing map[Source]string
}

// toolPackages have the programs that guests can use.
func toolPackages() []string {
	return []string{"busybox-static", "btrfs-progs", "coreutils", "dmsetup", "e2fsprogs", "iproute2", "kmod", "mount", "nfs-kernel-server", "nftables", "rpcbind", "secilc", "util-linux", "xfsprogs"}
}

// emulatorPackages have a QEMU that runs with the installed one's libraries.
func emulatorPackages() []string {
	return []string{"qemu-system-x86", "qemu-system-common", "qemu-system-data", "seabios"}
}

// plan returns the current plan, or an old one if the lists cannot be fetched.
// The caller holds the lock.
func (s *Store) plan(ctx context.Context) (*plan, error) {
	old, err := s.readPlan()
	if err != nil {
		return nil, err
	}
	if old != nil && time.Now().Before(old.Next) && slices.Equal(old.Asked, toolPackages()) {
		return old, nil
	}
	s.log("fetching Debian package lists")
	p, err := s.makePlan(ctx)
	switch {
	case err == nil:
		return p, errors.Join(s.writePlan(p), s.expire(time.Now()))
	case old == nil:
		return nil, err
	}
	s.log("fetching package lists failed, using those of %s: %v", old.Made.Format(time.DateOnly), err)
	old.Next = time.Now().Add(retry)
	return old, s.writePlan(old)
}

func (s *Store) planPath() string { return filepath.Join(s.dir, "plan.json") }

// readPlan returns nil if there is no valid plan.
func (s *Store) readPlan() (*plan, error) {
	data, err := os.ReadFile(s.planPath())
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var p plan
	if err := json.Unmarshal(data, &p); err != nil {
		s.log("recreating invalid %s: %v", s.planPath(), err)
		return nil, nil
	}
	return &p, nil
}

func (s *Store) writePlan(p *plan) error {
	data, err := json.MarshalIndent(p, "", "\t")
	if err != nil {
		return err
	}
	return os.WriteFile(s.planPath(), data, 0o644)
}

// doubt makes the next run create a new plan, because the archive might have
// removed pinned versions.
func (s *Store) doubt() error {
	p, err := s.readPlan()
	if err != nil || p == nil {
		return err
	}
	p.Next = time.Time{}
	return s.writePlan(p)
}

func (s *Store) makePlan(ctx context.Context) (*plan, error) {
	a := s.apt()
	if err := a.configure(ctx); err != nil {
		return nil, err
	}
	if err := a.update(ctx); err != nil {
		return nil, err
	}
	release, err := codename()
	if err != nil {
		return nil, err
	}
	now := time.Now()
	p := &plan{Made: now, Next: now.Add(fresh), Asked: toolPackages(), Kernels: map[Source][]Package{}, Missing: map[Source]string{}}
	if p.Tools, err = a.closure(ctx, Stable, "", toolPackages()...); err != nil {
		return nil, err
	}
	if p.Kernels[Stable], err = a.kernel(ctx, Stable, ""); err != nil {
		return nil, err
	}
	for source, suite := range suites(release) {
		if err := s.planOptional(ctx, p, source, suite); err != nil {
			p.Missing[source] = err.Error()
			s.log("no packages of %s: %v", source, err)
		}
	}
	return p, nil
}

func (s *Store) planOptional(ctx context.Context, p *plan, source Source, suite string) error {
	if err := s.apt().updateOptional(ctx, source); err != nil {
		return err
	}
	kernel, err := s.apt().kernel(ctx, source, suite)
	if err != nil {
		return err
	}
	if source != Backports {
		p.Kernels[source] = kernel
		return nil
	}
	all, err := s.apt().closure(ctx, source, suite, "qemu-system-x86")
	if err != nil {
		return err
	}
	p.Kernels[source] = kernel
	for _, pkg := range all {
		if slices.Contains(emulatorPackages(), pkg.Name) {
			p.Emulator = append(p.Emulator, pkg)
		}
	}
	return nil
}

var kernelPackage = regexp.MustCompile("^linux-(base|binary|image|modules)-[0-9]")

// kernel returns the kernel packages that linux-image-amd64 depends on: one, and
// since 7.2 others with the kernel and its modules.
func (a apt) kernel(ctx context.Context, source Source, suite string) ([]Package, error) {
	all, err := a.closure(ctx, source, suite, "linux-image-amd64")
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(p Package) bool {
		return !kernelPackage.MatchString(p.Name)
	})
	if len(all) == 0 {
		return nil, errors.New("linux-image-amd64 has no kernel dependency")
	}
	return all, nil
}

func (s *Store) apt() apt { return apt{dir: filepath.Join(s.dir, "apt")} }

// unpack returns a directory with the contents of a source's packages; finish can
// add to it. The caller holds the lock.
func (s *Store) unpack(ctx context.Context, source Source, name string, packages []Package, finish func(root string) error) (string, error) {
	return s.once(packagesDir, name+"-"+hashOf(packages), func(root string) error {
		s.log("downloading and unpacking %s", describe(packages))
		archives := filepath.Join(s.dir, downloadDir)
		if err := os.RemoveAll(archives); err != nil { // left over from a killed run
			return err
		}
		if err := os.Mkdir(archives, 0o755); err != nil {
			return err
		}
		defer os.RemoveAll(archives)
		found, err := s.apt().download(ctx, source, packages, archives)
		if err != nil {
			return errors.Join(err, s.doubt())
		}
		for _, archive := range found {
			if _, err := output(exec.CommandContext(ctx, "dpkg-deb", "--extract", archive, root)); err != nil {
				return err
			}
		}
		if finish == nil {
			return nil
		}
		return finish(root)
	})
}

func describe(packages []Package) string {
	if len(packages) > 4 {
		return fmt.Sprintf("%d Debian packages", len(packages))
	}
	var all []string
	for _, p := range packages {
		all = append(all, p.String())
	}
	return strings.Join(all, " ")
}

// hashOf returns a short hash of values.
func hashOf(v ...any) string {
	data, err := json.Marshal(v)
	if err != nil {
		panic(err) // callers pass only types that can be marshalled
	}
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:8])
}
