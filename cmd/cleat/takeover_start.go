package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/dynamic"

	"github.com/cleatproject/cleat/errs"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/kubeconfig"
	"github.com/cleatproject/cleat/takeover"
	"github.com/cleatproject/cleat/takeover/plan"
)

// takeoverRequest has the flags of an administrator's commands.
type takeoverRequest struct {
	session
	kubeconfig, context, namespace string
}

func (q *takeoverRequest) addFlags(c *cobra.Command, more func(*pflag.FlagSet)) {
	q.session.add(c.Flags(), func(fs *pflag.FlagSet) {
		fs.StringVarP(&q.namespace, "namespace", "n", defaultTakeoverNamespace, "namespace of the remediations")
		if more != nil {
			more(fs)
		}
	})
	c.Flags().StringVar(&q.kubeconfig, "kubeconfig", "", "kubeconfig file; empty: KUBECONFIG, ~/.kube/config, or that of the pod")
	c.Flags().StringVar(&q.context, "context", "", "context of the kubeconfig; empty: its current one")
	c.Flags().DurationVar(&q.timeout, "timeout", time.Minute, "time limit of the command")
}

func (q *takeoverRequest) run(cmd *cobra.Command, doing string, work func(ctx context.Context, client dynamic.Interface) error) error {
	if err := q.bind(); err != nil {
		return err
	}
	access, _, err := kubeconfig.LoadUser(q.kubeconfig, q.context, "cleat-takeover/"+release)
	if err != nil {
		return err
	}
	client, err := dynamic.NewForConfig(access)
	if err != nil {
		return fmt.Errorf("client of the API server %s: %w", access.Host, err)
	}
	return q.session.run(cmd, doing, func(ctx context.Context, _ func(string)) error { return work(ctx, client) })
}

func newTakeoverStartCommand() *cobra.Command {
	var q takeoverRequest
	c := &cobra.Command{
		Use:   "start NODE",
		Short: "Ask for the takeover of a lost node",
		Long: `Creates the StorageFenceRemediation of a node, as NodeHealthCheck does for a node that
is unhealthy. The controller fences the node's storage, and only then lets its pods
start elsewhere. It does nothing while the node is Ready.`,
		Example: "  cleat takeover start node-7\n  cleat takeover show node-7",
		Args:    cobra.ExactArgs(1),
	}
	q.addFlags(c, nil)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		return q.run(cmd, "starting the takeover", func(ctx context.Context, client dynamic.Interface) error {
			r, err := takeover.Start(ctx, client, q.namespace, args[0])
			if err != nil {
				return err
			}
			return cli.Print(cmd.OutOrStdout(), q.output, cli.Textf("started %s/%s", r.Namespace, r.Name), r)
		})
	}
	return c
}

func newTakeoverReleaseCommand() *cobra.Command {
	var q takeoverRequest
	var off bool
	var dpus []string
	c := &cobra.Command{
		Use:   "release NODE --off",
		Short: "Confirm that the machine of a fenced node is off, so that its fence is lifted",
		Long: `Confirms that the machine that was fenced is off, or was restarted: the controller lifts
its fences, although no boot of the same machine was seen. A machine that still runs
writes again as soon as its fence is lifted, over the data of those that took over:
look at the machine itself.

Each DPU of the node is a machine of its own; --dpu confirms those too.`,
		Example: "  cleat takeover release node-7 --off\n  cleat takeover release node-7 --off --dpu dpu-7a",
		Args:    cobra.ExactArgs(1),
	}
	q.addFlags(c, nil)
	c.Flags().BoolVar(&off, "off", false, "the machine is off, or was restarted since it was fenced; required")
	c.Flags().StringSliceVar(&dpus, "dpu", nil, "a DPU of the node that is off, or was restarted; can be repeated")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		if !off {
			return errors.New("--off is required: it confirms that the machine is off, or was restarted since it was fenced")
		}
		return q.run(cmd, "releasing the node", func(ctx context.Context, client dynamic.Interface) error {
			r, err := takeover.Release(ctx, client, q.namespace, args[0], dpus)
			if err != nil {
				return err
			}
			return cli.Print(cmd.OutOrStdout(), q.output, cli.Textf("confirmed for %s: %s", args[0], strings.Join(r.Spec.Off.Machines, ", ")), r)
		})
	}
	return c
}

// backendReading is what a backend says now about the fences of a certificate.
type backendReading struct {
	Backend  string   `json:"backend"`
	Missing  []string `json:"missing,omitempty"` // addresses of the certificate that are not held
	Evidence []string `json:"evidence,omitempty"`
	Error    string   `json:"error,omitempty"`
}

func newTakeoverShowCommand() *cobra.Command {
	var q takeoverRequest
	var f coverageFlags
	c := &cobra.Command{
		Use:   "show NODE",
		Short: "Show the takeover of a node, and read its certificate back",
		Long: `Shows the conditions of a takeover, what was written down, and the certificate: what
was fenced at which backend, how that was proved, and when.

With --coverage it asks each backend now whether the fences of the certificate are still
in force: run it in a pod of the controller, which has the file and its certificates.
The exit code is 0 only if there is a certificate and all its fences were read back.`,
		Example: `  kubectl -n cleat-system exec deploy/cleat-takeover -- cleat takeover show node-7
  cleat takeover show node-7 -o yaml`,
		Args: cobra.ExactArgs(1),
	}
	q.addFlags(c, f.addFlags)
	c.RunE = func(cmd *cobra.Command, args []string) error {
		return q.run(cmd, "reading the takeover", func(ctx context.Context, client dynamic.Interface) error {
			found, err := takeover.Of(ctx, client, q.namespace, args[0])
			if err != nil {
				return err
			}
			if len(found) == 0 {
				return errs.Errorf(errs.NotFound, "node %s has no %s in namespace %s", args[0], takeover.Kind, q.namespace)
			}
			for _, r := range found {
				readings, readErr := f.readBack(ctx, client, r)
				document := struct {
					*takeover.Remediation
					Now []backendReading `json:"now,omitempty"`
				}{r, readings}
				err = errors.Join(err, cli.Print(cmd.OutOrStdout(), q.output, takeoverView(r, readings), document), readErr)
			}
			return err
		})
	}
	return c
}

// readBack asks the backends of the certificate. Without one, or without
// --coverage, the error says that nothing was read back.
func (f *coverageFlags) readBack(ctx context.Context, kube dynamic.Interface, r *takeover.Remediation) (readings []backendReading, err error) {
	s := r.Status
	switch {
	case s.Certificate == nil || s.Intent == nil:
		return nil, errs.Errorf(errs.Precondition, "%s has no certificate: its storage is not proved to be fenced", r.Name)
	case f.file == "":
		return nil, errs.Errorf(errs.Precondition, "the certificate of %s was not read back: set --coverage, or run the command in a pod of the controller", r.Name)
	}
	if err := s.Verify(); err != nil {
		return nil, errs.Errorf(errs.Precondition, "%s: %w", r.Name, err)
	}
	coverage, err := f.read()
	if err != nil {
		return nil, err
	}
	backends, closeAll, err := openBackends(kube, coverage.Backends, f.tls)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, closeAll(ctx)) }()
	for _, p := range s.Certificate.Proofs {
		reading := backendReading{Backend: p.Backend}
		if b := backends[p.Backend]; b == nil {
			reading.Error = "it is not configured any more"
		} else if now, err := b.ReadBack(ctx, string(r.UID), p.Addresses); err != nil {
			reading.Error = err.Error()
		} else {
			reading.Evidence, reading.Error = now.Evidence, now.FenceBlocked
			for _, a := range p.Addresses {
				if !slices.Contains(now.Held, a) {
					reading.Missing = append(reading.Missing, a.String())
				}
			}
		}
		if reading.Error != "" || len(reading.Missing) > 0 {
			err = errors.Join(err, errs.Errorf(errs.Precondition, "backend %s does not hold the fences of the certificate now: %s", p.Backend, strings.Join(append(reading.Missing, reading.Error), " ")))
		}
		readings = append(readings, reading)
	}
	return readings, err
}

func takeoverView(r *takeover.Remediation, readings []backendReading) cli.View {
	s := r.Status
	about := cli.Table{Header: []string{"NODE", r.Node()}}
	about.Add("Remediation", r.Namespace+"/"+r.Name)
	about.Add("State", takeover.State(s))
	for _, c := range s.Conditions {
		if c.Type == plan.Processing {
			about.Add("Reason", c.Reason)
			about.AddKnown("Message", c.Message)
		}
	}
	views := cli.Paragraphs{about}
	if s.Record != nil {
		t := cli.Table{Header: []string{"MACHINE", "MACHINE ID", "SYSTEM UUID", "BOOT ID"}}
		for _, m := range s.Record.Machines {
			t.Add(m.Name, m.MachineID, m.SystemUUID, m.BootID)
		}
		volumes := cli.Table{Header: []string{"VOLUME", "DRIVER", "SEEN IN"}}
		for _, v := range s.Record.Volumes {
			volumes.Add(v.Name, cmp.Or(v.Driver, v.Plugin), v.SeenIn)
		}
		views = append(views, t, volumes)
	}
	if c := s.Certificate; c != nil {
		about.Add("Certificate", c.Digest)
		about.Add("Certified", c.At.Format(time.RFC3339))
		views[0] = about
		t := cli.Table{Header: []string{"BACKEND", "ADDRESSES", "READ BACK", "EVIDENCE"}}
		for _, p := range c.Proofs {
			t.Add(p.Backend, fmt.Sprint(p.Addresses), p.At.Format(time.RFC3339), strings.Join(p.Evidence, "; "))
		}
		views = append(views, t)
	}
	if len(readings) > 0 {
		t := cli.Table{Header: []string{"NOW AT BACKEND", "HELD", "EVIDENCE"}}
		for _, n := range readings {
			held := "all"
			if n.Error != "" {
				held = "not known: " + n.Error
			} else if len(n.Missing) > 0 {
				held = "not " + strings.Join(n.Missing, ", ")
			}
			t.Add(n.Backend, held, strings.Join(n.Evidence, "; "))
		}
		views = append(views, t)
	}
	return views
}
