package dpu

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	storagev1 "github.com/cleatproject/cleat/api/dpf/storage/v1"
	"github.com/cleatproject/cleat/internal/linux/mount"
	"github.com/cleatproject/cleat/spdk/spdktest"
	"github.com/cleatproject/cleat/test/testkit"
)

const (
	otherUser = 54321
	friend    = 54322
)

// callAs calls the plugin as another user: on Linux a thread has its own
// credentials. The thread is never unlocked, so it ends with its goroutine.
func (s *site) callAs(uid int) error {
	s.t.Helper()
	dial := func(context.Context, string) (net.Conn, error) {
		type dialled struct {
			c   net.Conn
			err error
		}
		out := make(chan dialled)
		go func() {
			runtime.LockOSThread()
			const same = ^uintptr(0)
			if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, same, uintptr(uid), same); errno != 0 {
				out <- dialled{nil, errno}
				return
			}
			c, err := net.Dial("unix", s.socket())
			out <- dialled{c, err}
		}()
		got := <-out
		return got.c, got.err
	}
	conn, err := grpc.NewClient("passthrough:///plugin", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithContextDialer(dial))
	testkit.Must(s.t, err)
	defer conn.Close()
	ctx, cancel := context.WithTimeout(s.ctx, patience)
	defer cancel()
	_, err = storagev1.NewIdentityServiceClient(conn).Probe(ctx, &storagev1.ProbeRequest{})
	return err
}

// Only root and users allowed by --allow-uid can call, and a second plugin does
// not replace the socket of a running one.
func TestOnlyAllowedUsersCanCall(t *testing.T) {
	t.Parallel()
	s := newSite(t, spdktest.Config{}, plain)
	s.start()
	mode := func(path string, want os.FileMode) {
		t.Helper()
		info := testkit.Value(os.Stat(path))(s.t)
		if info.Mode().Perm() != want {
			t.Errorf("%s has mode %v, want %v", path, info.Mode().Perm(), want)
		}
	}
	mode(s.socket(), 0o600)
	mode(filepath.Dir(s.socket()), 0o750)
	if err := s.callAs(otherUser); err == nil || !strings.Contains(err.Error(), unix.EACCES.Error()) {
		t.Errorf("user %d: %v", otherUser, err)
	}
	// The same for a user with access to the socket.
	testkit.Must(s.t, errors.Join(os.Chmod(filepath.Dir(s.socket()), 0o755), os.Chmod(s.socket(), 0o666)))
	if err := s.callAs(otherUser); status.Code(err) != codes.Unavailable {
		t.Errorf("user %d: %v", otherUser, err)
	}
	testkit.Must(s.t, s.callAs(0))

	// Its state directory differs, so only the socket conflicts.
	thief := testkit.Value(launch(plain, s.socket(), filepath.Join(s.dir, "thief"), nil, append(s.flags, "--state-dir", filepath.Join(s.dir, "other"), "--metrics-address", "")...))(s.t)
	if err := thief.Wait(); err == nil || !strings.Contains(thief.log(), s.socket()) {
		t.Errorf("a second plugin on the socket of the first one ended with %v: %s", err, thief.log())
	}
	testkit.Must(s.t, s.callAs(0))
	s.stop()

	s.flags = append(s.flags, "--allow-uid", "54322")
	s.start()
	mode(s.socket(), 0o666)
	testkit.Must(s.t, s.callAs(friend))
	testkit.Must(s.t, s.callAs(0))
	if err := s.callAs(otherUser); status.Code(err) != codes.Unavailable {
		t.Errorf("user %d: %v", otherUser, err)
	}
	if !strings.Contains(s.plugin.log(), "user=54321") {
		t.Error("the log does not name the refused user")
	}
}

// The socket of a dead plugin is replaced.
func TestStaleSocketIsReplaced(t *testing.T) {
	t.Parallel()
	s := newSite(t, spdktest.Config{}, plain)
	s.start()
	s.kill()
	s.start()
}

// SIGTERM while SNAP hangs during a create: the process ends within its bound,
// and the next one cleans up.
func TestStopDuringHangingCreate(t *testing.T) {
	t.Parallel()
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t, k.snap, plain)
			s.start()
			beside := s.neighbour(k.volume(s, "neighbour"))
			v := k.volume(s, "victim")
			for _, method := range makes {
				s.snap.Inject(spdktest.Fault{Method: method, Wait: 2 * patience})
			}
			if k.name == "NVMe of one subsystem" { // already attached
				s.snap.Inject(spdktest.Fault{Method: "bdev_get_bdevs", Wait: 2 * patience})
			}
			s.snap.Forget()
			creating := make(chan error, 1)
			go func() { creating <- onlyErr(s.try(v)) }()
			s.eventually("SNAP hangs", func() error {
				for _, c := range s.snap.Calls() {
					if strings.Contains(strings.Join(makes, " ")+" bdev_get_bdevs", c.Method) {
						return nil
					}
				}
				return errors.New("no request")
			})
			begun := time.Now()
			s.stop()
			t.Logf("it ended %s after SIGTERM", time.Since(begun).Round(time.Millisecond))
			if err := <-creating; err == nil {
				t.Error("the create was answered with OK")
			}
			s.snap.Clear()
			s.start()
			s.awaitAgreement(map[string]string{beside.id: beside.device}, beside.volume)
			s.unharmed(beside)
			s.hide(beside)
			s.remove(beside.volume, "")
			s.empty()
		})
	}
}

// The disk of the record is full: no device is created without a record;
// existing ones stay and can be deleted.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	s := newSite(t, spdktest.Config{SNAP: true}, plain)
	testkit.Must(s.t, os.Mkdir(s.state(), 0o700))
	testkit.Must(s.t, mount.Mount(s.ctx, mount.Spec{Source: "none", Target: s.state(), FSType: "tmpfs", Options: []string{"size=3m"}}))
	s.start()
	made := map[string]string{}
	var volumes []volume
	for _, id := range []string{"a", "b"} {
		v := s.file(id)
		made[id], volumes = s.create(v), append(volumes, v)
	}
	testkit.Must(s.t, fill(filepath.Join(s.state(), "filling")))
	// The store has reserved space, which is used up first.
	var err error
	n := 0
	for ; n < 2000 && err == nil; n++ {
		v := s.file(fmt.Sprint("more-", n))
		v.contexts.Publish = map[string]string{"nv-volumeAttachmentName": strings.Repeat("x", 3000)}
		var device string
		if device, err = s.try(v); err == nil {
			made[v.id], volumes = device, append(volumes, v)
		}
	}
	if err == nil {
		t.Fatalf("%d records of 3 KB fit on a full disk of 3 MiB", n)
	}
	t.Logf("after %d more devices: %v", n-1, err)
	s.refused(err, "no space left")
	s.awaitAgreement(made, volumes...)
	s.kill()
	s.start()
	s.awaitAgreement(made, volumes...)
	for _, v := range volumes {
		s.remove(v, made[v.id])
	}
	s.empty()
	testkit.Must(s.t, os.Remove(filepath.Join(s.state(), "filling")))
	s.awaitAgreement(map[string]string{"a": s.create(volumes[0])}, volumes...)
	s.remove(volumes[0], "")
	s.stop()
	testkit.Must(s.t, mount.Unmount(s.ctx, s.state()))
}

// fill writes until the file system is full.
func fill(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	for block := make([]byte, 4096); ; {
		if _, err := f.Write(block); errors.Is(err, unix.ENOSPC) {
			return nil
		} else if err != nil {
			return err
		}
	}
}
