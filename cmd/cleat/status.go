package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/cleatproject/cleat/csi"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/server"
	"github.com/cleatproject/cleat/kubelet/watch"
	"github.com/cleatproject/cleat/volume"
)

// States of a server.
const (
	notAnswering = "not answering"
	notReady     = "not ready"
	isReady      = "ready"
)

// serverStatus is the state of a server that was found.
type serverStatus struct {
	Server   string   `json:"server"`
	PID      int      `json:"pid,omitempty"` // unknown outside this PID namespace
	State    string   `json:"state"`
	Problems []string `json:"problems"`
	More     string   `json:"more"`             // command that says more
	Socket   string   `json:"socket,omitempty"` // that answered
	// Status is the server's /status.
	Status map[string]json.RawMessage `json:"status,omitempty"`
}

// statusSearch finds the servers of this machine: by their processes, and by
// the sockets at the default places.
type statusSearch struct {
	isCleat func(exe string) bool
	places  map[string]string
	timeout time.Duration // of one server
}

func newStatusCommand() *cobra.Command {
	var f session
	c := &cobra.Command{
		Use:   "status",
		Short: "Show every cleat server of this machine, and what is wrong",
		Long: `Finds the cleat servers of this machine (csi, fence serve, host, dpu, sriov plugin
and daemon), also those in containers, and asks each whether it is ready. It shows
first what is wrong, with a command that says more. A server that cannot be asked
is shown as "not answering".

Servers are found by their processes, and by the status sockets at the default
places. Only root can use these sockets. The exit code is 0 if servers were found
and all are ready. -o json or yaml has each server's whole /status.`,
		Example: `  sudo cleat status
  sudo cleat status -o json | jq '.[] | select(.state != "ready")'`,
		Args: noArgs,
	}
	f.add(c.Flags(), func(e *pflag.FlagSet) {
		e.DurationVar(&f.timeout, "timeout", statusTimeout, "time limit of each server's answer; 0 means none")
	})
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := f.bind(); err != nil {
			return err
		}
		search := statusSearch{isCleat: isCleat, places: statusPlaces(), timeout: f.timeout}
		f.timeout = 0
		return f.run(cmd, "asking the servers", func(ctx context.Context, _ func(string)) error {
			all, err := search.run(ctx)
			return errors.Join(f.printResult(cmd, statusView(all), all, nil), err)
		})
	}
	return c
}

// run returns all servers, and an error unless all are ready.
func (s statusSearch) run(ctx context.Context) ([]serverStatus, error) {
	processes, total, err := serverProcesses(s.isCleat)
	if err != nil {
		return nil, err
	}
	var all []serverStatus
	var asking sync.WaitGroup
	var mu sync.Mutex
	add := func(one serverStatus) {
		mu.Lock()
		defer mu.Unlock()
		all = append(all, one)
	}
	for _, p := range processes {
		asking.Go(func() { add(s.askProcess(ctx, p)) })
	}
	asking.Wait()
	looked, hidden := s.askPlaces(ctx, slices.Clone(all), add)
	slices.SortFunc(all, func(a, b serverStatus) int {
		return cmp.Or(cmp.Compare(a.rank(), b.rank()), strings.Compare(a.Server, b.Server), cmp.Compare(a.PID, b.PID))
	})
	var failed int
	for _, one := range all {
		if one.State != isReady {
			failed++
		}
	}
	switch {
	case failed > 0:
		err = fmt.Errorf("not ready: %d of %s", failed, count(len(all), "server"))
	case len(all) == 0 && len(hidden) == 0:
		err = fmt.Errorf("no cleat server found: none of the %d processes in /proc runs one, and no status socket exists at %s", total, strings.Join(looked, ", "))
	}
	if len(hidden) > 0 {
		unseen := fmt.Errorf("only root can see whether a server uses %s: run the command as root", strings.Join(hidden, ", "))
		if err == nil {
			return all, unseen
		}
		err = fmt.Errorf("%w; %w", err, unseen)
	}
	return all, err
}

// rank sorts what is wrong first.
func (s serverStatus) rank() int {
	switch {
	case s.State == notAnswering:
		return 0
	case s.State == notReady:
		return 1
	case len(s.Problems) > 0:
		return 2
	}
	return 3
}

func (s statusSearch) askProcess(ctx context.Context, p *serverProcess) serverStatus {
	ctx, cancel := s.limit(ctx)
	defer cancel()
	one := serverStatus{Server: p.server, PID: p.pid, State: notAnswering, Problems: []string{}, More: p.more()}
	socket, err := p.statusSocket(ctx)
	switch {
	case errors.Is(err, fs.ErrPermission):
		one.Problems = []string{"only root can ask it: run the command as root"}
	case err != nil:
		one.Problems = []string{err.Error()}
	case socket == "":
		one.Problems = []string{"no status socket: it is starting or stopping, its log says \"status socket unavailable\", or it is an older release"}
	default:
		one.ask(ctx, socket)
	}
	if dir, err := os.Readlink(filepath.Dir(socket)); socket != "" && err == nil {
		one.Socket = filepath.Join(dir, server.StatusName)
	}
	return one
}

func (s statusSearch) limit(ctx context.Context) (context.Context, context.CancelFunc) {
	if s.timeout == 0 {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, s.timeout)
}

// askPlaces adds servers whose process is not visible, and sockets that killed
// servers left. hidden are those that this user cannot see.
func (s statusSearch) askPlaces(ctx context.Context, known []serverStatus, add func(serverStatus)) (looked, hidden []string) {
	for _, name := range slices.Sorted(maps.Keys(s.places)) {
		pattern := s.places[name]
		looked = append(looked, pattern)
		if _, err := os.Lstat(pattern); errors.Is(err, fs.ErrPermission) {
			hidden = append(hidden, pattern)
		}
		sockets, _ := filepath.Glob(pattern) // the pattern is valid
		for _, socket := range sockets {
			if one, isNew := s.askPlace(ctx, name, socket, known); isNew {
				add(one)
			}
		}
	}
	return looked, hidden
}

func (s statusSearch) askPlace(ctx context.Context, name, socket string, known []serverStatus) (one serverStatus, isNew bool) {
	ctx, cancel := s.limit(ctx)
	defer cancel()
	one = serverStatus{Server: name, State: notAnswering, Problems: []string{}, More: defaultMore(name, nil), Socket: socket}
	pid, err := servedBy(ctx, socket)
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		// A server that replaces the socket of a killed one is shown by its process.
		one.Problems = []string{"no process serves " + socket + ": the server did not stop cleanly, and does not run; start it, or remove the socket"}
		return one, !slices.ContainsFunc(known, func(k serverStatus) bool { return k.Socket == socket })
	case err != nil:
		one.Problems = []string{err.Error()}
		return one, true
	}
	one.PID = pid
	if pid != 0 && slices.ContainsFunc(known, func(k serverStatus) bool { return k.PID == pid }) {
		return one, false
	}
	one.ask(ctx, socket)
	return one, true
}

// ask sets state and problems.
func (s *serverStatus) ask(ctx context.Context, socket string) {
	var ready struct {
		Ready  bool              `json:"ready"`
		Checks map[string]string `json:"checks"`
	}
	err := server.Ask(ctx, socket, "/readyz", &ready)
	if err == nil {
		err = server.Ask(ctx, socket, "/status", &s.Status)
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		s.Problems = []string{"the process accepts connections, but has not answered in time: it hangs, or is stopped"}
		return
	case err != nil:
		s.Problems = []string{err.Error()}
		return
	}
	s.State = notReady
	if ready.Ready {
		s.State = isReady
	}
	for _, name := range slices.Sorted(maps.Keys(ready.Checks)) {
		if reason := ready.Checks[name]; reason != "ok" {
			s.Problems = append(s.Problems, name+": "+reason)
		}
	}
	s.addProblems()
}

// addProblems adds what is wrong although the server is ready.
func (s *serverStatus) addProblems() {
	var document struct {
		CSI    csi.Status `json:"csi"`
		Fences struct {
			Ending []json.RawMessage `json:"ending"`
		} `json:"fences"`
		Host struct {
			Plugins []watch.Status `json:"plugins"`
		} `json:"host"`
	}
	for name, part := range map[string]any{"csi": &document.CSI, "fences": &document.Fences, "host": &document.Host} {
		_ = json.Unmarshal(s.Status[name], part) // of another release: /readyz is enough
	}
	if s.State == isReady {
		for _, c := range document.CSI.Conditions {
			if c.Severity == volume.Degraded {
				s.Problems = append(s.Problems, fmt.Sprintf("%s %s: %s", c.Severity, c.Reason, c.Message))
			}
		}
	}
	if n := len(document.Fences.Ending); n > 0 {
		s.Problems = append(s.Problems, count(n, "session")+" of fenced clients not ended")
	}
	for _, p := range document.Host.Plugins {
		if p.Phase != watch.Registered || p.Dead {
			s.Problems = append(s.Problems, fmt.Sprintf("plugin %s is %s", cmp.Or(p.Name, p.Socket), stateOf(p)))
		}
	}
}

// describe begins the sentence about a problem.
func (s serverStatus) describe() string {
	text := s.Server
	if s.PID > 0 {
		text += fmt.Sprintf(" (%d)", s.PID)
	}
	if s.State == isReady {
		return text + " is ready, but: "
	}
	return text + " is " + s.State + ": "
}

// statusView shows what is wrong, then all servers.
func statusView(all []serverStatus) cli.View {
	if len(all) == 0 {
		return cli.Text("")
	}
	var wrong []string
	t := cli.Table{Header: []string{"SERVER", "STATE", "PID", "MORE"}}
	for _, s := range all {
		pid := ""
		if s.PID > 0 {
			pid = fmt.Sprint(s.PID)
		}
		for _, p := range s.Problems {
			wrong = append(wrong, s.describe()+p)
		}
		t.Add(s.Server, s.State, pid, s.More)
	}
	if len(wrong) == 0 {
		return t
	}
	return cli.Paragraphs{cli.Text(strings.Join(wrong, "\n")), t}
}

// more returns the command for a process, with its sockets if they are not the
// defaults, or are in another mount namespace.
func (p *serverProcess) more() string {
	root := ""
	own, _ := os.Readlink("/proc/self/ns/mnt")
	if its, err := os.Readlink(filepath.Join(p.dir(), "ns", "mnt")); err == nil && its != own {
		root = filepath.Join(p.dir(), "root")
	}
	setting := func(flag, option string) string {
		f := p.command.Flags().Lookup(flag)
		path := strings.TrimPrefix(f.Value.String(), "unix://")
		switch {
		case !filepath.IsAbs(path):
			path = filepath.Join(p.dir(), "cwd", path)
		case root == "" && f.Value.String() == f.DefValue:
			return ""
		}
		return " --" + option + " " + root + path
	}
	if controlled, _ := p.command.Flags().GetBool("controlled-mode"); controlled {
		return "cleat sriov status" + setting("control-socket", "control-socket")
	}
	return defaultMore(p.server, setting)
}

// defaultMore: setting returns an option of the client with the value of a
// server's flag.
func defaultMore(name string, setting func(flag, option string) string) string {
	if setting == nil {
		setting = func(string, string) string { return "" }
	}
	switch name {
	case serverCSI:
		return "cleat csi status" + setting("state-dir", "state-dir")
	case serverFence:
		return "cleat fence check" + setting("endpoint", "endpoint")
	case serverHost:
		return "cleat plugins why" + setting("socket", "host")
	}
	return "cleat status -o yaml"
}
