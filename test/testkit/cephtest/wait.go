package cephtest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"time"

	"github.com/cleatproject/cleat/test/testkit"
)

// ask sends a command to the monitor and decodes its answer.
type ask func(into any, command string) error

// until polls a condition of the cluster. One ceph CLI answers all questions: the
// start of another for each would use 0.2 s of a processor.
func (c *Cluster) until(what string, check func(ask) error) error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*testkit.Timeout)
	defer cancel()
	cli := exec.CommandContext(ctx, "ceph", "-c", c.Conf(), "--format", "json")
	cli.Env = append(c.environ(), "PYTHONUNBUFFERED=1")
	questions, err := cli.StdinPipe()
	if err != nil {
		return err
	}
	output, err := cli.StdoutPipe()
	if err != nil {
		return err
	}
	cli.Stderr = cli.Stdout
	if err := cli.Start(); err != nil {
		return err
	}
	lines := bufio.NewReader(output)
	ask := func(into any, command string) error {
		if _, err := fmt.Fprintln(questions, command); err != nil {
			return errors.Join(errEnded, err)
		}
		return decode(lines, into)
	}
	for err = check(ask); err != nil && !errors.Is(err, errEnded); err = check(ask) {
		time.Sleep(200 * time.Millisecond)
	}
	ended := errors.Join(questions.Close(), cli.Wait())
	if err != nil {
		return fmt.Errorf("no %s: %w", what, errors.Join(err, context.Cause(ctx), ended))
	}
	return nil
}

var errEnded = errors.New("the ceph CLI has ended")

// decode decodes the next line of JSON, and returns the CLI's error if that comes
// first. Other lines are messages of its libraries.
func decode(lines *bufio.Reader, into any) error {
	for {
		line, err := lines.ReadString('\n')
		switch {
		case err != nil:
			return errors.Join(errEnded, err)
		case strings.HasPrefix(line, "{"), strings.HasPrefix(line, "["):
			return json.Unmarshal([]byte(line), into)
		case strings.HasPrefix(line, "Error"):
			return errors.New(strings.TrimSpace(line))
		}
	}
}

// osdMap is the answer of osd dump.
type osdMap struct {
	OSDs []struct {
		Up     int
		UpFrom int `json:"up_from"`
	}
	Pools []struct {
		PGNum int `json:"pg_num"`
	}
}

// upFrom is the epoch since which the OSD is up; 0 if it is not.
func (m osdMap) upFrom() int {
	if len(m.OSDs) == 0 || m.OSDs[0].Up != 1 {
		return 0
	}
	return m.OSDs[0].UpFrom
}

// waitOSD waits until the OSD is up since an epoch after the given one, and all
// placement groups are active.
func (c *Cluster) waitOSD(after int) error {
	return c.until("active OSD", func(ask ask) error {
		var m osdMap
		if err := ask(&m, "osd dump"); err != nil {
			return err
		}
		if m.upFrom() <= after {
			return fmt.Errorf("the OSD is not up: %+v", m.OSDs)
		}
		return isClean(ask)
	})
}

// isClean returns an error while a placement group is not active, or missing in
// the manager's report, as those of a new pool are at first.
func isClean(ask ask) error {
	var status struct {
		PGMap struct {
			Total int `json:"num_pgs"`
			By    []struct {
				State string `json:"state_name"`
				Count int
			} `json:"pgs_by_state"`
		}
		MgrMap struct{ Available bool }
	}
	if err := ask(&status, "status"); err != nil {
		return err
	}
	for _, s := range status.PGMap.By {
		if s.State != "active+clean" {
			return fmt.Errorf("%d placement groups are %s", s.Count, s.State)
		}
	}
	var m osdMap
	if err := ask(&m, "osd dump"); err != nil {
		return err
	}
	want := 0
	for _, p := range m.Pools {
		want += p.PGNum
	}
	if !status.MgrMap.Available || status.PGMap.Total != want {
		return fmt.Errorf("the manager (available: %t) reports %d of %d placement groups", status.MgrMap.Available, status.PGMap.Total, want)
	}
	return nil
}
