package cluster

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// Kubectl runs kubectl as an administrator with this standard input and returns
// its output.
func (c *Cluster) Kubectl(ctx context.Context, input string, args ...string) (string, error) {
	return c.tool(ctx, "kubectl", input, args...)
}

// Helm runs helm as an administrator and returns its output.
func (c *Cluster) Helm(ctx context.Context, args ...string) (string, error) {
	return c.tool(ctx, "helm", "", args...)
}

// Apply creates or updates the objects of a YAML text.
func (c *Cluster) Apply(ctx context.Context, text string) error {
	_, err := c.Kubectl(ctx, text, "apply", "--server-side", "--force-conflicts", "-f", "-")
	return err
}

func (c *Cluster) tool(ctx context.Context, name, input string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, c.Programs.Path(name), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.Kubeconfig, "HOME="+c.Dir)
	cmd.Stdin = strings.NewReader(input)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("%s %s: %w: %s%s", name, strings.Join(args, " "), err, errs.String(), out.String())
	}
	return out.String(), nil
}
