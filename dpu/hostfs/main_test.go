package hostfs

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/dpu/plan"
	"github.com/cleatproject/cleat/dpu/pool"
	"github.com/cleatproject/cleat/internal/linux/kernelcall"
	"github.com/cleatproject/cleat/test/testkit"
	"github.com/cleatproject/cleat/volume/access"
)

// Arguments that start the tests as misbehaving helpers.
const (
	hangWord    = "hang"    // does nothing
	lateWord    = "late"    // mounts a tmpfs and does not respond
	garbageWord = "garbage" // prints an invalid response
	forceWord   = "force"   // unmounts only by force
)

func TestMain(m *testing.M) {
	kernelcall.Main()
	if len(os.Args) < 2 || strings.HasPrefix(os.Args[1], "-") {
		_ = os.Setenv("GORACE", "atexit_sleep_ms=0") // else the race detector waits a second per helper
		goleak.VerifyTestMain(m)
		return
	}
	if err := helper(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

func helper(word string) error {
	if word == HelperCommand {
		return RunHelper(context.Background(), os.Stdin, os.Stdout)
	}
	in := bufio.NewReader(os.Stdin)
	line, err := in.ReadString('\n')
	if err != nil {
		return err
	}
	var o helperRequest
	if err := json.Unmarshal([]byte(line), &o); err != nil {
		return err
	}
	switch word {
	case lateWord:
		if err := unix.Mount("late", o.Target, "tmpfs", 0, "size=64k"); err != nil {
			return err
		}
	case forceWord:
		if o.Unmount.Flags != 0 {
			return json.NewEncoder(os.Stdout).Encode(responseOf(o.Unmount.execute(context.Background(), o.Target)))
		}
	case garbageWord:
		fmt.Println("no answer")
		return errors.New("and a reason")
	}
	_, err = io.Copy(io.Discard, in) // until the test kills it, or dies
	return err
}

const (
	poolID = "0198a6b2-7c1e-7b5e-9d0a-0123456789ab"
	// far is a deadline that no test reaches.
	far = 2 * time.Minute
)

type rig struct {
	*Mounts
	pool string
	log  *testkit.Log
}

func newRig(t *testing.T, edit ...func(*Config)) rig {
	t.Helper()
	base := t.TempDir()
	r := rig{pool: filepath.Join(base, "pool"), log: testkit.NewLog(t)}
	for _, dir := range []string{"one", "two/deep"} {
		testkit.Must(t, os.MkdirAll(filepath.Join(r.pool, dir), 0o755))
		testkit.Must(t, os.WriteFile(filepath.Join(r.pool, dir, "file"), []byte(dir), 0o600))
	}
	c := Config{
		Dir: filepath.Join(base, "volumes"), Pools: pool.Pools{poolID: r.pool}, Deadline: far,
		Helper: []string{"/proc/self/exe", HelperCommand}, Logger: r.log.Logger(),
	}
	for _, e := range edit {
		e(&c)
	}
	r.Mounts = testkit.Value(Open(c))(t)
	t.Cleanup(func() {
		entries, _ := os.ReadDir(c.Dir)
		for _, e := range entries {
			for unix.Unmount(filepath.Join(c.Dir, e.Name()), unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW) == nil {
			}
		}
	})
	return r
}

func helperWord(word string) func(*Config) {
	return func(c *Config) { c.Helper = []string{"/proc/self/exe", word} }
}

func dirSpec(name string, readOnly bool) plan.MountSpec {
	return plan.MountSpec{Directory: &access.File{Pool: poolID, Name: name}, ReadOnly: readOnly}
}
