// Package features lists what tests need and test machines or checkouts can
// lack. A test calls Need and is skipped only where the feature's probe reports
// it absent. In CI a listed kernel feature that is present is a failure (see
// the test): its entry has to be removed.
package features

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/test/tree"
)

// Feature is one thing that a kernel, this process's privileges or the checkout
// can lack.
type Feature struct {
	Name   string
	Reason string // why it is absent
	Proved string // where else the dependent behaviour is tested
	// OfCheckout features depend on how the source was fetched: the entry stays
	// where one is present.
	OfCheckout bool
	// Present probes this machine.
	Present func() (bool, error)
}

// OnlineExt4Growth is EXT4_IOC_RESIZE_FS, which requires CAP_SYS_RESOURCE.
const OnlineExt4Growth = "ext4-online-growth"

// NVMeTarget is the kernel's NVMe target (nvmet) and initiator, loaded.
const NVMeTarget = "nvme-target"

// CephFS is the kernel's CephFS client, loaded.
const CephFS = "cephfs"

// History is the repository's history back to PreviousRelease.
const History = "history"

// PreviousRelease is the commit of the previous release, which the upgrade tests
// (test/csi, test/fence) build. It moves with each release.
const PreviousRelease = "ff40bafc41452a8b2e5d9d45fcd4f1c1b878abaf"

// PreviousRemote is the same for the engines of network storage (test/spdk, test/ceph, test/vm),
// which PreviousRelease does not have. The next release is both.
const PreviousRemote = "4ac652f7c0fed6a3b97d687d59c12528a40c2dd7"

// All returns the list.
func All() []Feature {
	return []Feature{{
		Name:    OnlineExt4Growth,
		Reason:  "the test machines run without CAP_SYS_RESOURCE, which ext4 requires to grow while mounted",
		Proved:  "the error and the growth at the next stage are tested here; online growth in a guest (test/vm/node)",
		Present: hasSysResource,
	}, {
		Name:    NVMeTarget,
		Reason:  "the kernel of the test machines has no NVMe over Fabrics",
		Proved:  "the tests run in guests (test/vm/nvme)",
		Present: hasNVMeTarget,
	}, {
		Name:    CephFS,
		Reason:  "the kernel of the test machines has no CephFS",
		Proved:  "the tests run in guests (test/vm/ceph)",
		Present: hasCephFS,
	}, {
		Name:       History,
		Reason:     "a source archive or a shallow clone lacks commit " + PreviousRelease + " or " + PreviousRemote,
		Proved:     "upgrade and downgrade are tested in any full clone",
		OfCheckout: true,
		Present:    hasPreviousRelease,
	}}
}

// Need skips the test if the named feature is listed and absent.
func Need(t testing.TB, name string) {
	t.Helper()
	for _, f := range All() {
		if f.Name != name {
			continue
		}
		present, err := f.Present()
		if err != nil {
			t.Fatalf("probe of feature %s: %v", name, err)
		}
		if !present {
			t.Skipf("left out: feature %s is absent: %s; %s", f.Name, f.Reason, f.Proved)
		}
		return
	}
	t.Fatalf("%q is not in the list of test/features", name)
}

func hasSysResource() (bool, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return false, err
	}
	for line := range strings.Lines(string(status)) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			set, err := strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
			return set&(1<<unix.CAP_SYS_RESOURCE) != 0, err
		}
	}
	return false, nil
}

func hasNVMeTarget() (bool, error) {
	for _, path := range []string{"/sys/kernel/config/nvmet", "/dev/nvme-fabrics"} {
		if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
			return false, nil
		} else if err != nil {
			return false, err
		}
	}
	return true, nil
}

func hasCephFS() (bool, error) {
	types, err := os.ReadFile("/proc/filesystems")
	return strings.Contains(string(types), "\tceph\n"), err
}

// BuildPrevious builds cleat of the previous release, with crash points, and
// returns its source and the program. It needs History.
func BuildPrevious(t testing.TB) (source, program string) {
	t.Helper()
	Need(t, History)
	program = filepath.Join(t.TempDir(), "cleat")
	source = testkit.Value(buildCommit(t.Context(), program, PreviousRelease, "crashpoints"))(t)
	return source, program
}

// BuildPreviousRemote is the same for engines of network storage, by the build tags that
// they need.
func BuildPreviousRemote(t testing.TB, tags string) (program string) {
	t.Helper()
	Need(t, History)
	program = filepath.Join(t.TempDir(), "cleat")
	testkit.Must(t, BuildPreviousRemoteTo(t.Context(), program, tags))
	return program
}

// BuildPreviousRemoteTo is the same for a TestMain. Without History it builds nothing: the
// tests call Need.
func BuildPreviousRemoteTo(ctx context.Context, program, tags string) error {
	if present, err := hasPreviousRelease(); err != nil || !present {
		return err
	}
	_, err := buildCommit(ctx, program, PreviousRemote, tags)
	return err
}

// buildCommit returns the commit's source, a directory beside the program.
func buildCommit(ctx context.Context, program, commit, tags string) (source string, err error) {
	root, err := tree.Root()
	if err != nil {
		return "", err
	}
	source = program + "-source"
	if err := os.Mkdir(source, 0o700); err != nil {
		return "", err
	}
	cgo := "CGO_ENABLED=0"
	if strings.HasPrefix(tags, "ceph,") {
		cgo = "CGO_ENABLED=1"
	}
	build := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags=-s -w", "-tags", tags, "-o", program, testkit.Cleat)
	build.Dir, build.Env = source, append(os.Environ(), cgo)
	for _, command := range []*exec.Cmd{
		tree.Git(root, "archive", "--format=tar", "--output="+source+".tar", commit),
		exec.CommandContext(ctx, "tar", "-xf", source+".tar", "-C", source),
		build,
	} {
		if out, err := command.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build commit %s: %s: %w\n%s", commit, command, err, out)
		}
	}
	return source, nil
}

// hasPreviousRelease reports whether git has the commits. They are absent too where git is
// not installed.
func hasPreviousRelease() (bool, error) {
	root, err := tree.Root()
	if err != nil {
		return false, err
	}
	for _, commit := range []string{PreviousRelease, PreviousRemote} {
		if tree.Git(root, "cat-file", "-e", commit+"^{commit}").Run() != nil {
			return false, nil
		}
	}
	return true, nil
}
