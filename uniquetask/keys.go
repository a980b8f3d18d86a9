package uniquetask

import (
	"fmt"
	"time"
)

// The keys of periodic runs. They take the instant for which the run was
// scheduled, and not the present, on which two machines never agree; and the
// time zone whose days are meant, for the same reason. zone must not be nil.
// The keys of one zone sort in the order of time, save that of two hours in
// which the clock shows the same.

// RunDay is the key of the day in zone in which the instant lies, as
// "2026-11-29". A day has one key, whether it has 23, 24 or 25 hours.
func RunDay(scheduled time.Time, zone *time.Location) string {
	return scheduled.In(zone).Format(time.DateOnly)
}

// RunHour is the key of the hour in zone in which the instant lies, with the
// offset from UTC, as "2026-11-01T01-04:00". So the two hours of which the clock
// shows the same, when daylight saving ends, have two keys.
func RunHour(scheduled time.Time, zone *time.Location) string {
	return scheduled.In(zone).Format("2006-01-02T15Z07:00")
}

// RunWeek is the key of the ISO 8601 week, from Monday to Sunday in zone, in
// which the instant lies, as "2026-W48". At the turn of the year its year is
// that of the week's Thursday.
func RunWeek(scheduled time.Time, zone *time.Location) string {
	year, week := scheduled.In(zone).ISOWeek()
	return fmt.Sprintf("%04d-W%02d", year, week)
}

// DayStart is the first instant of a day in zone, to schedule by. It is not
// always midnight: where daylight saving begins at midnight the day starts at
// 01:00, and time.Date would return an instant of the day before; where the
// clock shows midnight twice it is the first.
func DayStart(year int, month time.Month, day int, zone *time.Location) time.Time {
	t := time.Date(year, month, day, 0, 0, 0, 0, zone)
	begin, end := t.ZoneBounds()
	if t.Hour() != 0 {
		// No midnight. time.Date took the offset of one side of the gap; the
		// day starts where the gap is.
		if t.Hour() > 12 {
			return end
		}
		return begin
	}
	if !begin.IsZero() {
		_, now := t.Zone()
		_, before := begin.Add(-time.Second).Zone()
		if first := t.Add(time.Duration(now-before) * time.Second); first.Before(begin) && first.Hour() == 0 && first.Day() == t.Day() {
			return first
		}
	}
	return t
}
