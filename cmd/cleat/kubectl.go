package main

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"k8s.io/client-go/dynamic"

	"github.com/cleatproject/cleat/diagnosis"
	"github.com/cleatproject/cleat/internal/cli"
	"github.com/cleatproject/cleat/internal/kubeconfig"
)

// kubectlPlugin is the name by which kubectl finds this program on PATH.
const kubectlPlugin = "kubectl-cleat"

// isKubectlPlugin reports whether the program was started as kubectl's plugin.
func isKubectlPlugin(name string) bool { return filepath.Base(name) == kubectlPlugin }

// clusterQuestion has the flags of a command that reads the cluster.
type clusterQuestion struct {
	kubeconfig, context, namespace string
	timeout                        time.Duration
	format                         cli.Format
}

func newKubectlCommand() *cobra.Command {
	c := &cobra.Command{
		Use:   "kubectl",
		Short: "Explain claims, pods and the state of cleat in a cluster, as a plugin of kubectl",
		Long: `Reads the API server with your kubeconfig and your rights, and changes nothing.

As a plugin of kubectl: link this program as kubectl-cleat into a directory of PATH,
then write kubectl cleat in place of cleat kubectl.`,
		Example: `  sudo ln -s cleat /usr/local/bin/kubectl-cleat
  kubectl cleat why pvc/data`,
	}
	setUpGroup(c)
	c.AddCommand(newWhyCommand(), newClusterStatusCommand(), newClusterVolumesCommand())
	return c
}

func (q *clusterQuestion) addFlags(fs *pflag.FlagSet) {
	q.format = cli.FormatTable
	fs.StringVar(&q.kubeconfig, "kubeconfig", "", "kubeconfig file; empty: KUBECONFIG, or ~/.kube/config")
	fs.StringVar(&q.context, "context", "", "context of the kubeconfig; empty: its current one")
	fs.DurationVar(&q.timeout, "timeout", 30*time.Second, "time limit for reading the API server")
	fs.VarP(&q.format, "output", "o", outputUsage)
}

// ask calls f with a client.
func (q *clusterQuestion) ask(cmd *cobra.Command, f func(ctx context.Context, e *diagnosis.Explainer) error) error {
	access, namespace, err := kubeconfig.LoadUser(q.kubeconfig, q.context, "cleat-kubectl/"+release)
	if err != nil {
		return err
	}
	if q.namespace == "" {
		q.namespace = namespace
	}
	access.QPS, access.Burst = 100, 200
	client, err := dynamic.NewForConfig(access)
	if err != nil {
		return fmt.Errorf("client of the API server %s: %w", access.Host, err)
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), q.timeout)
	defer cancel()
	return f(ctx, diagnosis.New(client, time.Now()))
}

func newWhyCommand() *cobra.Command {
	var q clusterQuestion
	c := &cobra.Command{
		Use:   "why pod/NAME|pvc/NAME",
		Short: "Explain what a pod or a claim waits for, and what helps",
		Long: `Follows a pod or a claim over class, capacity, volume, attachment, fence and the
driver of its node, and stops at the first that is not as it must be: what it waits
for, what was read to know this, and the command that helps.

Events are what a component reported once: they are shown with their age. What your
rights do not allow to read is listed, and nothing is concluded from it. The exit code
is 0 if the object waits for nothing.`,
		Example: "  kubectl cleat why pvc/data\n  kubectl cleat why -n shop pod/db-0",
		Args:    cobra.RangeArgs(1, 2),
	}
	q.addFlags(c.Flags())
	c.Flags().StringVarP(&q.namespace, "namespace", "n", "", "namespace; empty: that of the context")
	c.RunE = func(cmd *cobra.Command, args []string) error {
		kind, name, found := strings.Cut(strings.Join(args, "/"), "/")
		if !found || name == "" {
			return fmt.Errorf("%q: write pod/NAME or pvc/NAME", args[0])
		}
		return q.ask(cmd, func(ctx context.Context, e *diagnosis.Explainer) error {
			a, err := e.Why(ctx, kind, q.namespace, name)
			if err != nil {
				return err
			}
			err = cli.Print(cmd.OutOrStdout(), q.format, answerView(a), a)
			if a.Waiting {
				err = errors.Join(err, fmt.Errorf("%s waits", a.Object))
			}
			return err
		})
	}
	return c
}

func answerView(a diagnosis.Answer) cli.View {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s", a.Object, a.Reason)
	for _, part := range []struct {
		title string
		lines []string
	}{{"Read", a.Evidence}, {"Next", a.Next}, {"Not read", a.NotRead}} {
		if len(part.lines) > 0 {
			fmt.Fprintf(&b, "\n\n%s:\n  %s", part.title, strings.Join(part.lines, "\n  "))
		}
	}
	return cli.Text(b.String())
}

func newClusterStatusCommand() *cobra.Command {
	var q clusterQuestion
	c := &cobra.Command{
		Use:   "status",
		Short: "Show the pods, drivers, fences and withdrawn devices of cleat in the cluster",
		Long: `Shows what is wrong first, with a command that says more. The exit code is 0 if
nothing is wrong and all was read.`,
		Example: "  kubectl cleat status",
		Args:    noArgs,
	}
	q.addFlags(c.Flags())
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		return q.ask(cmd, func(ctx context.Context, e *diagnosis.Explainer) error {
			all, missing := e.Status(ctx)
			t := cli.Table{Header: []string{"STATE", "OBJECT", "NODE", "DETAIL", "NEXT"}}
			wrong := 0
			for _, f := range all {
				state := "ok"
				if f.Problem {
					state, wrong = "wrong", wrong+1
				}
				t.Add(state, f.Object, f.Node, f.State, f.Next)
			}
			err := errors.Join(cli.Print(cmd.OutOrStdout(), q.format, t, all), notRead(missing))
			switch {
			case wrong > 0:
				return errors.Join(err, fmt.Errorf("wrong: %d of %d", wrong, len(all)))
			case len(all) == 0 && err == nil:
				return errors.New("no pod of a cleat release was found in any namespace")
			}
			return err
		})
	}
	return c
}

func newClusterVolumesCommand() *cobra.Command {
	var q clusterQuestion
	c := &cobra.Command{
		Use:     "volumes",
		Short:   "List the volumes of cleat's drivers with their claims, nodes and pods",
		Example: "  kubectl cleat volumes",
		Args:    noArgs,
	}
	q.addFlags(c.Flags())
	c.RunE = func(cmd *cobra.Command, _ []string) error {
		return q.ask(cmd, func(ctx context.Context, e *diagnosis.Explainer) error {
			all, missing := e.Volumes(ctx)
			t := cli.Table{Header: []string{"CLAIM", "VOLUME", "SIZE", "DRIVER", "PHASE", "NODES", "PODS"}}
			for _, v := range all {
				t.Add(v.Claim, v.Name, v.Size, v.Driver, v.Phase, strings.Join(v.Nodes, ","), strings.Join(v.Pods, ","))
			}
			return errors.Join(cli.Print(cmd.OutOrStdout(), q.format, t, all), notRead(missing))
		})
	}
	return c
}

func notRead(missing []string) error {
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("not read: %s", strings.Join(missing, "; "))
}
