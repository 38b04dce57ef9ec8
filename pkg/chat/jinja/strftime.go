package jinja

import (
	"fmt"
	"strings"
	"time"
)

// strftime prints a time as C's strftime does in the C locale.
func strftime(t time.Time, layout string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(layout); i++ {
		if layout[i] != '%' || i+1 == len(layout) {
			b.WriteByte(layout[i])
			continue
		}
		i++
		flag := byte(0)
		if strings.IndexByte("-_0^", layout[i]) >= 0 && i+1 < len(layout) {
			flag = layout[i]
			i++
		}
		if layout[i] == '%' {
			b.WriteByte('%')
			continue
		}
		s, width, err := timeField(t, layout[i])
		if err != nil {
			return "", err
		}
		switch flag {
		case '-':
			if s = strings.TrimLeft(s, "0 "); s == "" && width > 0 {
				s = "0"
			}
		case '_':
			if digits := strings.TrimLeft(s, "0"); width > 0 {
				if digits == "" {
					digits = "0"
				}
				s = fmt.Sprintf("%*s", width, digits)
			}
		case '0':
			s = strings.ReplaceAll(s, " ", "0")
		case '^':
			s = strings.ToUpper(s)
		}
		b.WriteString(s)
	}
	return b.String(), nil
}

// timeField prints one field; width is that of a number that is padded.
func timeField(t time.Time, field byte) (s string, width int, err error) {
	num := func(width, n int) (string, int, error) { return fmt.Sprintf("%0*d", width, n), width, nil }
	hour12 := (t.Hour()+11)%12 + 1
	switch field {
	case 'Y':
		return fmt.Sprint(t.Year()), 0, nil
	case 'C':
		return num(2, t.Year()/100)
	case 'y':
		return num(2, t.Year()%100)
	case 'm':
		return num(2, int(t.Month()))
	case 'd':
		return num(2, t.Day())
	case 'e':
		return fmt.Sprintf("%2d", t.Day()), 2, nil
	case 'H':
		return num(2, t.Hour())
	case 'I':
		return num(2, hour12)
	case 'k':
		return fmt.Sprintf("%2d", t.Hour()), 2, nil
	case 'l':
		return fmt.Sprintf("%2d", hour12), 2, nil
	case 'M':
		return num(2, t.Minute())
	case 'S':
		return num(2, t.Second())
	case 'f':
		return num(6, t.Nanosecond()/1000)
	case 'j':
		return num(3, t.YearDay())
	case 'U':
		return num(2, (t.YearDay()+6-int(t.Weekday()))/7)
	case 'W':
		return num(2, (t.YearDay()+6-(int(t.Weekday())+6)%7)/7)
	case 'w':
		return fmt.Sprint(int(t.Weekday())), 0, nil
	case 'u':
		return fmt.Sprint((int(t.Weekday())+6)%7 + 1), 0, nil
	case 'G':
		year, _ := t.ISOWeek()
		return fmt.Sprint(year), 0, nil
	case 'V':
		_, week := t.ISOWeek()
		return num(2, week)
	case 's':
		return fmt.Sprint(t.Unix()), 0, nil
	case 'n':
		return "\n", 0, nil
	case 't':
		return "\t", 0, nil
	case 'z', 'Z': // the reference prints a time without a zone
		return "", 0, nil
	}
	layouts := map[byte]string{'a': "Mon", 'A': "Monday", 'b': "Jan", 'h': "Jan", 'B': "January", 'p': "PM", 'P': "pm",
		'D': "01/02/06", 'x': "01/02/06", 'F': "2006-01-02", 'T': "15:04:05", 'X': "15:04:05", 'R': "15:04",
		'r': "03:04:05 PM", 'c': "Mon Jan _2 15:04:05 2006"}
	if layout, ok := layouts[field]; ok {
		return t.Format(layout), 0, nil
	}
	return "", 0, valueError("strftime format %%%c is not supported", field)
}
