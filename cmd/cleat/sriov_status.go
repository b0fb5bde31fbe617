package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"

	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/sriov/control"
	"github.com/cleatproject/cleat/sriov/gate"
)

// sriovAskAgain is the pause of --wait.
const sriovAskAgain = 250 * time.Millisecond

// sriovStatus is the document of cleat sriov status. Times are left out where
// there is none.
type sriovStatus struct {
	Plugin     string           `json:"plugin"`
	Version    string           `json:"version"`
	Extensions int              `json:"extensions"`
	State      string           `json:"state"`
	Control    string           `json:"control"`
	Generation int64            `json:"generation"`
	UID        string           `json:"uid,omitempty"`
	Hash       string           `json:"config_hash,omitempty"`
	LeaseEnds  *time.Time       `json:"lease_ends,omitempty"`
	HoldEnds   *time.Time       `json:"hold_ends,omitempty"`
	Pools      int              `json:"pools"`
	Devices    int              `json:"devices"`
	Error      string           `json:"error,omitempty"`
	Resources  []sriovStatusRow `json:"resources"`
}

// sriovStatusRow is one resource of a sriovStatus.
type sriovStatusRow struct {
	Name       string `json:"name"`
	State      string `json:"state"`
	Devices    int    `json:"devices"`
	Offered    int    `json:"offered"`
	Allocating int    `json:"allocating"`
	Kubelet    bool   `json:"kubelet_connected"`
	Error      string `json:"error,omitempty"`
}

func newSriovStatusCommand() *cobra.Command {
	var socket, wait string
	format, bound := cli.FormatTable, time.Duration(0)
	c := &cobra.Command{
		Use:   "status",
		Short: "Ask the running plugin whether it offers its devices, and who answers for them",
		Long: `Asks a device plugin on its control socket how it is: what it offers to the kubelet,
which config daemon answers for that, and what stands in the way. It changes
nothing.

A plugin has that socket with --controlled-mode. One that speaks no more than the
published proposal cannot be asked.

With --wait it goes on until the plugin is in that state, also while nobody serves
the socket yet.`,
		Example: `  sudo cleat sriov status
  sudo cleat sriov status -o json | jq .resources
  sudo cleat sriov status --wait SERVING --timeout 1m`,
		Args: exactlyNone,
	}
	flags := c.Flags()
	flags.StringVar(&socket, "control-socket", sriovControlSocket, "the --control-socket of the plugin")
	flags.StringVar(&wait, "wait", "", "wait until the plugin is in this state: "+strings.Join(sriovStates(), ", "))
	flags.DurationVar(&bound, "timeout", 0, "wait no longer than this; 0 is for ever with --wait, and "+statusBound.String()+" without")
	flags.VarP(&format, "output", "o", "table, json or yaml")
	cli.DescribeEnv(flags)
	cobra.CheckErr(c.RegisterFlagCompletionFunc("wait", cobra.FixedCompletions(sriovStates(), cobra.ShellCompDirectiveNoFileComp)))
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := cli.Bind(flags, cli.Sources{LookupEnv: os.LookupEnv}); err != nil {
			return err
		}
		switch {
		case bound < 0:
			return fmt.Errorf("--timeout %s is negative; 0 is the default", bound)
		case wait != "" && !slices.Contains(sriovStates(), wait):
			return fmt.Errorf("--wait %q is no state of a plugin; they are %s", wait, strings.Join(sriovStates(), ", "))
		case wait == "":
			bound = cmp.Or(bound, statusBound)
		}
		ctx, stop := signal.NotifyContext(cmd.Context(), os.Interrupt, syscall.SIGTERM)
		defer stop()
		if bound > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, bound)
			defer cancel()
		}
		s, err := sriovStatusWhen(ctx, socket, wait)
		if err != nil {
			return err
		}
		return cli.Print(cmd.OutOrStdout(), format, s.table(time.Now()), s)
	}
	return c
}

func sriovStates() []string {
	return []string{string(gate.Initializing), string(gate.Serving), string(gate.Failed), string(gate.Stopping)}
}

// sriovStatusWhen asks until the plugin is in a state; an empty one is any.
func sriovStatusWhen(ctx context.Context, socket, state string) (sriovStatus, error) {
	ticker := time.NewTicker(sriovAskAgain)
	defer ticker.Stop()
	last := errors.New("it has not answered")
	for {
		s, err := askSriovStatus(ctx, socket)
		late := errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil
		switch {
		case err == nil && (state == "" || s.State == state):
			return s, nil
		case state == "" || err != nil && !late && !mayCome(err):
			return s, explainSriov(socket, err)
		case err == nil:
			last = fmt.Errorf("it is %s", strings.TrimSpace(s.State+" "+s.Error))
		case !late:
			last = err
		}
		select {
		case <-ctx.Done():
			return s, fmt.Errorf("the plugin at %s is not %s in time: %w (%w)", socket, state, last, ctx.Err())
		case <-ticker.C:
		}
	}
}

// errSriovBroke: a connection that was made did not last.
var errSriovBroke = errors.New("it was connected to")

// mayCome reports whether an error is one of a plugin that is starting or ending.
func mayCome(err error) bool {
	return errors.Is(err, control.ErrNobody) || errors.Is(err, errSriovBroke)
}

func askSriovStatus(ctx context.Context, socket string) (sriovStatus, error) {
	c, err := control.Dial(ctx, socket)
	if err != nil {
		return sriovStatus{}, err
	}
	defer func() { _ = c.Close() }()
	now, err := c.Status(ctx)
	if _, said := errors.AsType[*control.End](err); err != nil && !said {
		return sriovStatus{}, fmt.Errorf("%w: %w", errSriovBroke, err)
	} else if err != nil {
		return sriovStatus{}, err
	}
	v, err := c.Version(ctx)
	if end, said := errors.AsType[*control.End](err); said && end.Code == codes.Unimplemented {
		err = nil // it need not tell
	}
	return newSriovStatus(now, v), err
}

// explainSriov says what an error means and what to do.
func explainSriov(socket string, err error) error {
	end, said := errors.AsType[*control.End](err)
	switch {
	case errors.Is(err, control.ErrNobody):
		return fmt.Errorf("no plugin is controlled at %s: it does not run, or runs without --controlled-mode and offers its devices by itself, or has another --control-socket: %w", socket, err)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("only root may ask the plugin at %s: %w", socket, err)
	case said && end.Code == codes.Unimplemented:
		return fmt.Errorf("the plugin at %s has no GetStatus: it speaks only the published proposal, which tells its status to the config daemon alone: %w", socket, err)
	case errors.Is(err, context.DeadlineExceeded):
		return fmt.Errorf("somebody listens at %s and does not answer; the process may hang, or be no device plugin: %w", socket, err)
	case errors.Is(err, errSriovBroke):
		return fmt.Errorf("what listens at %s may be no device plugin, or not take calls of this user: %w", socket, err)
	}
	return err
}

func newSriovStatus(s gate.Status, v control.Version) sriovStatus {
	d := sriovStatus{
		Plugin: v.Name, Version: v.Version, Extensions: v.Extensions, State: cmp.Or(string(s.State), "UNKNOWN"), Control: string(s.Holding),
		Generation: s.Generation, UID: s.UID, Hash: s.Hash, Pools: s.Pools, Devices: s.Devices, Error: s.Error, Resources: []sriovStatusRow{},
	}
	if !s.LeaseEnds.IsZero() {
		d.LeaseEnds = &s.LeaseEnds
	}
	if !s.HoldEnds.IsZero() {
		d.HoldEnds = &s.HoldEnds
	}
	for _, name := range slices.Sorted(maps.Keys(s.Resources)) {
		r := s.Resources[name]
		d.Resources = append(d.Resources, sriovStatusRow{name, string(r.Phase), r.Devices, r.Offered, r.Allocating, r.Streaming, r.Error})
	}
	return d
}

// table is for people: the plugin first, then a line for each resource.
func (s sriovStatus) table(now time.Time) cli.Table {
	t := cli.Table{Header: []string{"PLUGIN", cmp.Or(strings.TrimSpace(s.Plugin+" "+s.Version), "unknown")}}
	add := func(what, value string) { t.Rows = append(t.Rows, []string{what, value}) }
	add("State", s.State)
	add("Answered for by", s.holder(now))
	add("Offers", fmt.Sprintf("%s of %s", count(s.Devices, "device"), count(s.Pools, "resource")))
	add("Configuration", dash(s.Hash))
	if s.Error != "" {
		add("Trouble", s.Error)
	}
	for _, r := range s.Resources {
		add(r.Name, r.sentence())
	}
	return t
}

// holder says who answers for the devices.
func (s sriovStatus) holder(now time.Time) string {
	who := "generation " + strconv.FormatInt(s.Generation, 10)
	if s.UID != "" {
		who += " of node state " + s.UID
	}
	left := func(t time.Time) string { return t.Sub(now).Round(100 * time.Millisecond).String() }
	switch gate.Holding(s.Control) {
	case gate.NotControlled:
		return "nobody needs to: it is not in controlled mode"
	case gate.Waiting:
		return "nobody: it waits for a config daemon"
	case gate.Lost:
		if s.HoldEnds != nil {
			return fmt.Sprintf("nobody: %s is lost, and its hold time ends in %s", who, left(*s.HoldEnds))
		}
		return "nobody: " + who + " is lost, and its hold time runs"
	case gate.Live:
		if s.LeaseEnds != nil {
			who += ", with a lease that ends in " + left(*s.LeaseEnds)
		}
		return "a config daemon with " + who
	}
	return "unknown"
}

func (r sriovStatusRow) sentence() string {
	parts := []string{fmt.Sprintf("%s: %d of %s", r.State, r.Offered, count(r.Devices, "device"))}
	if r.Allocating > 0 {
		parts = append(parts, count(r.Allocating, "allocation")+" under way")
	}
	if !r.Kubelet {
		parts = append(parts, "no kubelet listens")
	}
	if r.Error != "" {
		parts = append(parts, r.Error)
	}
	return strings.Join(parts, "; ")
}
