package workload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
)

// emptyFigures are the driver's own figures that are zero when nothing is left:
// they count records, which no list of volumes shows.
func emptyFigures() []string {
	return []string{"cleat_node_volumes", "cleat_pool_volumes", "cleat_pool_snapshots", "cleat_pool_promised_bytes", "cleat_pool_copies"}
}

// complaint is a figure that is there only when something is wrong.
var complaint = regexp.MustCompile(`(?m)^cleat_(?:pool|volume)_health\{.*$`)

// verifyFigures wants the figures of a driver that owns nothing.
func verifyFigures(ctx context.Context, d Driver) error {
	text, err := scrape(ctx, d)
	if err != nil {
		return fmt.Errorf("read the driver's figures: %w", err)
	}
	var errs []error
	for _, name := range emptyFigures() {
		found := regexp.MustCompile(`(?m)^` + name + `(?:\{[^}]*\})? (\S+)$`).FindSubmatch(text)
		switch {
		case found == nil:
			errs = append(errs, fmt.Errorf("the driver does not say %s", name))
		case string(found[1]) != "0":
			errs = append(errs, fmt.Errorf("with nothing left %s is %s", name, found[1]))
		}
	}
	for _, line := range complaint.FindAll(text, -1) {
		errs = append(errs, fmt.Errorf("with nothing left the driver complains: %s", line))
	}
	return errors.Join(errs...)
}

func scrape(ctx context.Context, d Driver) ([]byte, error) {
	client := http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialMetrics(ctx) },
	}}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://driver/metrics", nil)
	if err != nil {
		return nil, err
	}
	answer, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer answer.Body.Close()
	text, err := io.ReadAll(answer.Body)
	if err == nil && answer.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s", answer.Status, text)
	}
	return text, err
}
