package image

import (
	"bytes"
	"fmt"
	"os/exec"
	"strings"
)

// output runs a command and returns what it prints. The error ends with the
// last lines of its complaints.
func output(cmd *exec.Cmd) (string, error) {
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		lines := strings.Split(strings.TrimSpace(stderr.String()), "\n")
		return "", fmt.Errorf("%s: %w: %s", strings.Join(cmd.Args, " "), err, strings.Join(lines[max(0, len(lines)-5):], "\n"))
	}
	return stdout.String(), nil
}
