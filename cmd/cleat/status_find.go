package main

import (
	"bytes"
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/internal/unixsock"
)

// Names of the servers, as in their command lines.
const (
	serverCSI         = "csi"
	serverDPU         = "dpu"
	serverFence       = "fence serve"
	serverHost        = "host"
	serverSriovPlugin = "sriov plugin"
	serverSriovDaemon = "sriov daemon"
)

// statusPlaces are the status sockets of servers with default settings, as
// patterns of filepath.Glob.
func statusPlaces() map[string]string {
	places := map[string]string{
		serverCSI: defaultState, serverFence: defaultFenceState, serverHost: filepath.Dir(strings.TrimPrefix(defaultHost, "unix://")),
		serverSriovPlugin: sriovPluginState, serverSriovDaemon: sriovDaemonState,
		serverDPU: filepath.Join(snapDir, "plugins", "*", dpuStateName),
	}
	for name, dir := range places {
		places[name] = filepath.Join(dir, server.StatusName)
	}
	return places
}

// isCleat recognises this executable, also after an upgrade, and those of other
// images.
func isCleat(exe string) bool {
	name := filepath.Base(strings.TrimSuffix(exe, " (deleted)"))
	_, isSample := samplePluginNames()[name]
	own, _ := os.Readlink("/proc/self/exe")
	return isSample || exe == own || name == "cleat" || strings.HasPrefix(name, "cleat-")
}

// serverProcess is a process that runs a server's command line.
type serverProcess struct {
	pid     int
	server  string
	command *cobra.Command // with the flags of the process; not of its --config
}

func (p *serverProcess) dir() string { return filepath.Join("/proc", strconv.Itoa(p.pid)) }

// serverProcesses returns the servers, and the number of all processes.
func serverProcesses(isCleat func(exe string) bool) (found []*serverProcess, total int, err error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, 0, err
	}
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		total++
		p := &serverProcess{pid: pid}
		args := zeroTerminated(filepath.Join(p.dir(), "cmdline"))
		if len(args) == 0 { // ended, or of the kernel
			continue
		}
		exe, err := os.Readlink(filepath.Join(p.dir(), "exe"))
		if err != nil { // only root can read it
			exe = args[0]
		}
		if isCleat(exe) && p.parse(args) {
			found = append(found, p)
		}
	}
	return found, total, nil
}

// parse returns false for other commands of cleat.
func (p *serverProcess) parse(args []string) bool {
	c, rest, err := newRootCommand().Find(upstreamArgs(commandLine(args)))
	if err != nil {
		return false
	}
	p.command, p.server = c, strings.TrimPrefix(c.CommandPath(), "cleat ")
	if !slices.Contains([]string{serverCSI, serverDPU, serverFence, serverHost, serverSriovPlugin, serverSriovDaemon}, p.server) {
		return false
	}
	env := zeroTerminated(filepath.Join(p.dir(), "environ"))
	_ = c.ParseFlags(rest) // a running server has accepted them
	_ = cli.Bind(c.Flags(), cli.Sources{LookupEnv: func(name string) (string, bool) {
		for _, line := range env {
			if key, value, ok := strings.Cut(line, "="); ok && key == name {
				return value, true
			}
		}
		return "", false
	}})
	return true
}

func zeroTerminated(file string) []string {
	text, err := os.ReadFile(file)
	if err != nil || len(text) == 0 {
		return nil
	}
	return strings.Split(string(bytes.TrimSuffix(text, []byte{0})), "\x00")
}

// statusSocket finds the socket in the directories that the process has open, as
// servers keep that of their sockets open. This works in every mount namespace,
// with all settings. "" without one.
func (p *serverProcess) statusSocket(ctx context.Context) (string, error) {
	descriptors, err := os.ReadDir(filepath.Join(p.dir(), "fdinfo"))
	if err != nil {
		return "", err
	}
	for _, d := range descriptors {
		if !isDirectory(filepath.Join(p.dir(), "fdinfo", d.Name())) {
			continue
		}
		path := filepath.Join(p.dir(), "fd", d.Name(), server.StatusName)
		if pid, err := servedBy(ctx, path); err == nil && pid == p.pid {
			return path, nil
		} else if errors.Is(err, fs.ErrPermission) {
			return "", err
		}
	}
	return "", nil
}

// isDirectory reads the flags, since a file on a network file system can hang.
func isDirectory(fdinfo string) bool {
	text, _ := os.ReadFile(fdinfo)
	for line := range strings.Lines(string(text)) {
		if flags, ok := strings.CutPrefix(line, "flags:"); ok {
			n, err := strconv.ParseInt(strings.TrimSpace(flags), 8, 64)
			return err == nil && n&unix.O_DIRECTORY != 0
		}
	}
	return false
}

// servedBy returns the process that listens; 0 outside this PID namespace.
func servedBy(ctx context.Context, socket string) (int, error) {
	c, err := unixsock.Dial(ctx, socket)
	if err != nil {
		return 0, err
	}
	defer func() { _ = c.Close() }()
	who, err := unixsock.PeerCredentials(c)
	return int(who.PID), err
}
