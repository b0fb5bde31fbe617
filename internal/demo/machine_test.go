package demo

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func wantError(t *testing.T, what string, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error, want one with %q", what, words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %q should hold %q", what, err, w)
		}
	}
}

func TestMachineErrorsTeach(t *testing.T) {
	wantError(t, "tool", checkTool("mkfs.nothing", "nothingprogs", "/nowhere"), "mkfs.nothing is not installed", "package nothingprogs", "apt-get install nothingprogs")
	wantError(t, "loops", checkLoops(filepath.Join(t.TempDir(), "loop-control")), "no loop devices", "modprobe loop", "privileged")
	wantError(t, "small", checkRoom(t.TempDir(), 1*gib), "--size 1 GiB", "at least 2 GiB")
	wantError(t, "large", checkRoom(t.TempDir(), 1<<50), "1 PiB", "--dir", "--size")
	if err := checkTool("mkfs.xfs", "xfsprogs", os.Getenv("PATH")); err != nil {
		t.Error(err)
	}
	if err := checkRoom(t.TempDir(), MinSize); err != nil {
		t.Error(err)
	}
}

func TestPlaces(t *testing.T) {
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "precious"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	deep := filepath.Join(t.TempDir(), strings.Repeat("d", 100))
	for what, c := range map[string]struct {
		dir   string
		words []string
	}{
		"full":       {full, []string{"not empty", "precious"}},
		"no parent":  {filepath.Join(full, "no", "dir"), []string{"--dir"}},
		"file":       {filepath.Join(full, "precious"), []string{"--dir"}},
		"socket":     {deep, []string{"too deep", "at most 107"}},
		"no parent2": {"/proc/demo", []string{"--dir"}},
	} {
		_, err := newWalk(Config{Dir: c.dir, Size: MinSize})
		wantError(t, what, err, c.words...)
	}
	if _, err := os.Stat(deep); !os.IsNotExist(err) {
		t.Errorf("a directory that was made and refused stays: %v", err)
	}
	if _, err := os.Stat(filepath.Join(full, "precious")); err != nil {
		t.Errorf("what was there before is gone: %v", err)
	}
	w, err := newWalk(Config{Dir: filepath.Join(full, "new"), Size: MinSize})
	if err != nil || !w.own {
		t.Fatalf("a new directory: %+v, %v", w, err)
	}
	if err := w.dropDir(); err != nil {
		t.Error(err)
	}
}

func TestRemoveFilesKeepsWhatItShould(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"pool.img", logName} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := removeFiles(dir, true, logName); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != logName {
		t.Errorf("left are %v, %v; want the log alone", entries, err)
	}
	for _, own := range []bool{false, true} {
		if err := removeFiles(dir, own); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir); os.IsNotExist(err) != own {
			t.Errorf("own is %v, and the directory: %v", own, err)
		}
	}
}

func TestRemoveRefusesForeignDirectories(t *testing.T) {
	dir := t.TempDir()
	wantError(t, "no mark", Remove(t.Context(), dir), dir, "no directory that cleat demo --keep has left")
	if err := os.WriteFile(filepath.Join(dir, markName), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	wantError(t, "bad mark", Remove(t.Context(), dir), markName, "cannot be read")
}

// A process id in the mark that another process has by now is left alone.
func TestForeignProcessesAreNoDrivers(t *testing.T) {
	for _, pid := range []int{os.Getpid(), 0, -1, 1 << 30} {
		if isCleat(pid, "unix:///d/csi/csi.sock") {
			t.Errorf("process %d was taken for the driver", pid)
		}
	}
}

// The driver of a demo that was killed is about to end, and listens no more: it is
// waited for, not asked.
func TestRemoveMeetsADriverThatEnds(t *testing.T) {
	dir, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	in, keep, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer keep.Close()
	nowhere, err := os.OpenFile(os.DevNull, os.O_WRONLY, 0) // a cat that cannot write ends by itself
	if err != nil {
		t.Fatal(err)
	}
	defer nowhere.Close()
	endpoint := (&walk{dir: dir}).endpoint()
	p, err := os.StartProcess("/bin/cat", []string{"cat", "-", endpoint}, &os.ProcAttr{Files: []*os.File{in, nowhere, nowhere}, Sys: &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}})
	if err != nil {
		t.Fatal(err)
	}
	_ = in.Close()
	// A new program has no arguments to show for a moment.
	for late := time.Now().Add(time.Minute); !isCleat(p.Pid, endpoint); time.Sleep(time.Millisecond) {
		if time.Now().After(late) {
			t.Fatal("cat shows no arguments")
		}
	}
	if err := (mark{Driver: p.Pid}).write(dir); err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	if err := Remove(t.Context(), dir); err != nil {
		t.Error(err)
	}
	if took := time.Since(started); took > cleanBound/2 {
		t.Errorf("took %s", took)
	}
	if state, err := p.Wait(); err != nil || !state.Sys().(syscall.WaitStatus).Signaled() {
		t.Errorf("%v, %v; want it ended by the signal", state, err)
	}
}

func TestEndProcess(t *testing.T) {
	p, err := os.StartProcess("/bin/sleep", []string{"sleep", "600"}, &os.ProcAttr{Sys: &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}})
	if err != nil {
		t.Fatal(err)
	}
	started := time.Now()
	if err := endProcess(p.Pid); err != nil {
		t.Error(err)
	}
	if took := time.Since(started); took > stopBound/2 {
		t.Errorf("took %s", took)
	}
	state, err := p.Wait()
	if err != nil || state.Success() {
		t.Errorf("%v, %v; want it ended by the signal", state, err)
	}
	if err := endProcess(p.Pid); err != nil {
		t.Errorf("again, when it is gone: %v", err)
	}
}
